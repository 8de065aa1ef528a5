"""Emu3's image tokenizer: the class `Emu3VQVAE` of Hugging Face's transformers, with the interface of `VQ16`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lantern.models.stored import StoredModel
from lantern_models.images.vq16 import ImageSizes, check_codes
from lantern_models.sizes import Sides


@dataclass(frozen=True)
class Emu3TokenizerConfig(ImageSizes):
    """Sizes, as in `VQ16Config`. The defaults are those of the published tokenizer.

    attention_levels are the indices of the levels with attention.
    """

    grid: Sides = 90
    codebook_size: int = 32768
    code_dim: int = 4
    channels: int = 256
    channel_multipliers: tuple[int, ...] = (1, 2, 2, 4)
    num_blocks: int = 2
    attention_levels: tuple[int, ...] = (3,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channel_multipliers", "attention_levels"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists

    @property
    @override
    def code_pixels(self) -> int:
        return 2 ** (len(self.channel_multipliers) - 1)  # all levels but the last halve the resolution


class Emu3Tokenizer(StoredModel):
    """The tokenizer, which is also made for videos. Code vectors are not normalised.

    Source: baaivision/Emu3@f6ea9aa, emu3/tokenizer; transformers' Emu3VQVAE.
    """

    kind = "emu3_tokenizer"
    config_class = Emu3TokenizerConfig
    config: Emu3TokenizerConfig

    def __init__(self, config: Emu3TokenizerConfig) -> None:
        # Imported here: transformers takes seconds to import, and only this class needs it.
        from transformers import Emu3VQVAE, Emu3VQVAEConfig

        super().__init__()
        self.config = config
        settings = Emu3VQVAEConfig(
            codebook_size=config.codebook_size,
            embed_dim=config.code_dim,
            latent_channels=config.code_dim,
            base_channels=config.channels,
            channel_multiplier=config.channel_multipliers,
            num_res_blocks=config.num_blocks,
            attn_resolutions=config.attention_levels,
            hidden_size=config.channels * config.channel_multipliers[-1],
        )
        self.vqvae = Emu3VQVAE(settings)

    @property
    def codebook(self) -> Tensor:
        """The code vectors as they are stored, (codebook_size, code_dim)."""
        return self.vqvae.quantize.embedding.weight

    @property
    def decoded_codebook(self) -> Tensor:
        """The code vectors that the decoder gets, float32 (codebook_size, code_dim)."""
        return self.codebook.float()

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images, (images, 3, height, width) in [-1, 1], as codes in raster order, int64 (images, codes)."""
        sizes = torch.tensor([images.shape[2:]] * len(images))
        # transformers encodes an image as a video of four equal frames, and cuts codes beyond its size off.
        codes = self.vqvae.encode(images, sizes).image_tokens
        return torch.stack(codes).flatten(1)  # pyright: ignore[reportArgumentType]  transformers returns a list

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to images of any shape, float32 (images, 3, height, width) in pixels, clamped to [-1, 1]."""
        codes = check_codes(codes, self.config.shape, self.config.codebook_size)
        # Given codes without a time axis, transformers returns the first of the decoded frames only.
        return self.vqvae.decode(codes).float().clamp(-1, 1)
