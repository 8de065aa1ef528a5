"""Part B: the shipped model in float32 gives the same images on a CPU, eagerly on the device, and from a graph.

Every method at temperature 0 and 1. Drafts are accepted as often as in use. The layers of CPU and GPU round in
different ways, so an image may part from the CPU's at a near-tie; the row then states the margin.
"""

from __future__ import annotations

import torch
from every_method import METHODS, spec_of

import lantern
from gpu_parts.common import Check, load_embedded, models_for
from lantern.decoding import Decoder, make_decoder
from lantern.decoding_state import Generation
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.losslessness import compare_with_autoregressive

CAPTIONS = [
    "a small red circle on grass",
    "a large blue square on sand",
    "a green triangle left of a white ring on water",
    "a yellow cross above a purple circle on night",
]
TINY_METHODS = ("autoregressive", "jacobi")
FIELDS = ("codes", "accepted_lengths", "accepted_nodes", "is_substituted")


def measure(check: Check) -> None:
    """Compare all methods."""
    cpu = torch.device("cpu")
    shipped = lantern.load("embedded")
    batch = shipped.encoder.encode(CAPTIONS[: 1 if check.is_tiny else None])
    reference = load_embedded(cpu)
    models = load_embedded(check.device, is_prepared=check.has_graphs)  # on a CPU too, the layer that a GPU runs
    num_equal = num_images = 0
    for name in TINY_METHODS if check.is_tiny else METHODS:
        for temperature in (1.0,) if check.is_tiny else (0.0, 1.0):
            sampling = SamplingConfig(temperature, 100, 1.0, "top_k_first", 3.0)
            row, spec = f"{name}, T {temperature:g}", spec_of(name)
            with check.attempt("images", row):
                expected_decoder = make_decoder(models_for(reference, spec), spec, sampling, records_margins=True)
                expected = _generate(expected_decoder, batch)
                decoder = make_decoder(models_for(models, spec), spec, sampling)
                num_equal += _compare(check, row, spec, decoder, batch, expected)
                num_images += len(batch[0])
    if num_images:
        check.write("all images", "float32", images=num_images, equal_to_cpu=num_equal)


def _generate(decoder: Decoder, batch: tuple[torch.Tensor, torch.Tensor]) -> Generation:
    return decoder.generate(*batch, [decoder.make_noise(0, str(index)) for index in range(len(batch[0]))])


def _compare(check: Check, row: str, spec: MethodSpec, decoder: Decoder, batch: tuple, expected: Generation) -> int:
    """Write the row of a method; return the number of images that equal the CPU's."""
    eager = _generate(decoder.stepped("eager"), batch)
    equality = compare_with_autoregressive(eager.codes.cpu(), expected.codes, expected.margins)
    num_equal = int(equality.is_equal.sum())
    margins = equality.margin_at_difference[~equality.is_equal].tolist()
    values = {
        "images": len(equality.is_equal),
        "equal_to_cpu": num_equal,
        "tokens_per_forward": eager.codes.shape[1] / float(eager.target_forwards.float().mean()),
        "margins_where_they_part": ", ".join(f"{margin:.2g}" for margin in margins),
    }
    if check.has_graphs:
        graph = _generate(decoder, batch)
        is_equal = all(torch.equal(getattr(graph, field), getattr(eager, field)) for field in FIELDS)
        values["is_right"] = is_equal and decoder.runner.mode == "graph"
        values["stepping"] = decoder.runner.mode
    else:
        values["stepping"] = "eager"
    check.write("images", row, **values)
    return num_equal
