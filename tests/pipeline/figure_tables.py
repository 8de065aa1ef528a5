"""Small tables and checks that the tests of several figures share."""

from __future__ import annotations

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import nn

from lantern.methods import MethodSpec
from lantern.records import GenerationRecords
from lantern_pipeline.data.tables import method_columns

SETTINGS = {"headline_prompt_set": "seen", "headline_temperature": 1.0}
AUTOREGRESSIVE = MethodSpec.of("autoregressive", method_id="autoregressive")
COUPLED = MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled")
SAMPLED = MethodSpec.of(
    "lantern",
    tree="chain5",
    drafts="sampled",
    acceptance="additive",
    residual="paper",
    neighbours="l2_normalised",
    k=20,
    delta=0.1,
    method_id="lantern-k20",
)
PROXIMITY = MethodSpec.of(
    "proximity",
    tree="chain3",
    drafts="coupled",
    acceptance="proximity",
    residual="paper",
    neighbours="l2_normalised",
    k=5,
    method_id="proximity-k5",
)
SPECS = (AUTOREGRESSIVE, COUPLED, SAMPLED, PROXIMITY)
MEASURES = ("speedup", "mean_accepted_length", "nll")


def make_summary(temperature: float = 1.0, repeat: str = "s0n0") -> pd.DataFrame:
    """The four methods; measures are 1, 2, 3, 4 with intervals of a quarter below and a half above."""
    rows = []
    for place, spec in enumerate(SPECS, start=1):
        row = method_columns(spec.to_dict())
        row |= {"prompt_set": "seen", "temperature": temperature, "repeat": repeat}
        row |= {"target_cross_entropy": 3.25, "target_prompt_accuracy": 0.75}
        for name in MEASURES:
            row |= {name: float(place), f"{name}_low": place - 0.25, f"{name}_high": place + 0.5}
        rows.append(row)
    return pd.DataFrame(rows)


def with_interval(name: str, value: float, below: float = 0.1, above: float = 0.2) -> dict[str, float]:
    """The three columns of a measured value."""
    return {name: value, f"{name}_low": value - below, f"{name}_high": value + above}


def make_records(spec: MethodSpec, codes: torch.Tensor, **tensors: torch.Tensor) -> GenerationRecords:
    """Records of images p0, p1, ...; what is not given is empty."""
    num = len(codes)
    names = ("step_lengths", "accepted_nodes", "is_substituted", "seconds", "margins")
    empty = {name: torch.zeros(num, 0) for name in names}
    fields = {**empty, "target_forwards": torch.ones(num, dtype=torch.int32), **tensors}
    ids = [f"p{i}" for i in range(num)]
    return GenerationRecords(ids, codes, **fields, metadata={"method": spec.to_dict()})


class Mosaic(nn.Module):
    """Decodes a code c to a grey token of the value c / 4 - 1, two by two pixels, on a square grid."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        side = int(codes.shape[1] ** 0.5)
        grey = (codes.float() / 4 - 1).unflatten(1, (side, side))
        return grey.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None].expand(-1, 3, -1, -1)


def assert_legible(figure: Figure) -> None:
    """Every text has at least seven points, and lies within the figure."""
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert texts
    assert min(text.get_fontsize() for text in texts) >= 7
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()  # inches
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.02, f"something leaves the figure: {box}"
