"""The public face: what it takes to draw images from Python, in one import. See the README's example."""

from lantern.codebook import nearest_codes
from lantern.decoding import Decoder, DecodingModels
from lantern.generation import draw_images, load_decoding_models
from lantern.methods import make_method
from lantern.sampling import SamplingConfig

__all__ = [
    "Decoder",
    "DecodingModels",
    "SamplingConfig",
    "draw_images",
    "load_decoding_models",
    "make_method",
    "nearest_codes",
]
