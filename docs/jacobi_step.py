"""Draw two consecutive Jacobi steps of the embedded model, with real tokens, into docs/jacobi_step.png.

`make diagrams` runs this script. A column of the picture is an image position. A token is shown as the patch of pixels
into which its code is decoded, with the number of the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import lantern
from lantern.api import Model
from lantern.codebook import ImageModel
from lantern.generation import decode_timed
from lantern.prompts import Prompt
from lantern.step import Outcome

PROMPT = "a large red circle on grass"
EMITTED, REJECTED, LATER = "#2a8c4a", "#c0392b", "0.55"
# In columns:
TILE = 0.86  # side of a token's picture
LINE = 2.1  # from drafts to samples
STEP = 4.3  # from the drafts of a step to those of the next


@dataclass
class Step:
    """A Jacobi step of one image. Draft i and sample i are of image position `first` + i."""

    number: int
    first: int  # position of the first draft
    drafts: list[int]
    samples: list[int]  # the target's, one more than drafts
    num_accepted: int

    @property
    def end(self) -> int:
        """Position after the last emitted token."""
        return self.first + self.num_accepted + 1


def record_steps(model: Model, prompt: str) -> tuple[list[Step], torch.Tensor]:
    """Generate an image by Jacobi decoding, and return its steps and its tokens, (tokens,)."""
    steps: list[Step] = []

    def observe(outcome: Outcome) -> None:
        keys, positions = outcome.scores.keys[0], outcome.scores.positions[0]
        drafts, samples = outcome.proposal.tokens[0, 1:].tolist(), keys.argmax(-1).tolist()
        steps.append(Step(len(steps) + 1, int(positions[0]), drafts, samples, int(outcome.num_accepted[0])))

    decoder = model.make_decoder("jacobi")
    decoder.observer = observe
    generation, _ = decode_timed(decoder, [Prompt("0", prompt)], model.encoder, run_seed=0)
    return steps, generation.codes[0]


def choose_steps(steps: list[Step], num_tokens: int) -> tuple[Step, Step]:
    """Return two steps in the middle of the image that accept two or more drafts each, but not all."""
    for first, second in pairwise(steps):
        is_inside = first.first >= num_tokens // 4 and second.first + len(second.samples) <= num_tokens
        if is_inside and all(2 <= step.num_accepted <= 4 for step in (first, second)):
            return first, second
    raise ValueError("no two steps in a row accept two to four drafts; choose another PROMPT")


@torch.inference_mode()
def picture_of(tokenizer: ImageModel, codes: torch.Tensor) -> np.ndarray:
    """Decode codes, (lines, columns), to an RGB image with values in [0, 1]."""
    pixels = tokenizer.decode(codes[None].long())[0]
    return ((pixels + 1) / 2).clamp(0, 1).permute(1, 2, 0).numpy()


def tile_of(tokenizer: ImageModel, code: int) -> np.ndarray:
    """Return the patch of one code: the middle of an image that consists of this code."""
    shape, side = tokenizer.config.shape, tokenizer.config.code_pixels
    picture = picture_of(tokenizer, torch.full(shape, code))
    top, left = (number // 2 * side for number in shape)
    return picture[top : top + side, left : left + side]


def draw_token(axes: Axes, tokenizer: ImageModel, code: int, column: float, line: float, colour: str) -> None:
    """Draw a token and its frame at a place of the axes."""
    left, right = column - TILE / 2, column + TILE / 2
    axes.imshow(tile_of(tokenizer, code), extent=(left, right, line + TILE / 2, line - TILE / 2), zorder=1)
    axes.add_patch(Rectangle((left, line - TILE / 2), TILE, TILE, fill=False, edgecolor=colour, linewidth=2, zorder=2))
    axes.text(column, line + TILE / 2 + 0.06, str(code), ha="center", va="top", fontsize=7.5, color=colour)


def draw_step(
    axes: Axes, tokenizer: ImageModel, step: Step, column_of: dict[int, int], top: float, earlier: Step | None
) -> None:
    """Draw the drafts of a step above the target's samples.

    Args:
        column_of: column of each image position.
        top: line of the drafts.
        earlier: the step before, if it is drawn, too.
    """
    middle, bottom = top + 1.13, top + LINE
    for index, code in enumerate(step.drafts):
        column = column_of[step.first + index]
        colour = EMITTED if index < step.num_accepted else REJECTED if index == step.num_accepted else LATER
        draw_token(axes, tokenizer, code, column, top, colour)
        if index <= step.num_accepted:
            sign = "=" if code == step.samples[index] else "≠"
            axes.text(column, middle, sign, ha="center", va="center", color=colour, weight="bold")
        # An arrow leads from the sample of the step before to the draft that it became.
        if earlier and earlier.samples[step.first + index - earlier.first :][:1] == [code]:
            arrow = {"arrowstyle": "-|>", "color": LATER, "linewidth": 1}
            axes.annotate("", (column, top - TILE / 2 - 0.05), (column, top - STEP + LINE + 0.9), arrowprops=arrow)
    for index, code in enumerate(step.samples):
        colour = EMITTED if index <= step.num_accepted else LATER
        draw_token(axes, tokenizer, code, column_of[step.first + index], bottom, colour)
    for name, line in (("drafts", top), ("samples", bottom)):
        axes.text(column_of[step.first] - 0.6, line, name, ha="right", va="center", fontsize=8.5)
    emitted = f"{step.num_accepted + 1} emitted"
    axes.text(column_of[step.end - 1] + 0.62, middle, emitted, va="center", fontsize=8.5, color=EMITTED)


def draw_image(axes: Axes, tokenizer: ImageModel, codes: torch.Tensor, step: Step) -> None:
    """Draw the image after a step: earlier tokens, those of the step framed, and grey where there are none yet."""
    shape, side = tokenizer.config.shape, tokenizer.config.code_pixels
    picture = picture_of(tokenizer, codes.view(shape))
    is_known = (torch.arange(codes.numel()) < step.end).view(shape).numpy()
    is_known = is_known.repeat(side, 0).repeat(side, 1)
    axes.imshow(np.where(is_known[..., None], picture, 0.9))
    for position in range(step.first, step.end):
        line, column = divmod(position, shape[1])
        axes.add_patch(
            Rectangle(
                (column * side - 0.5, line * side - 0.5), side, side, fill=False, edgecolor=EMITTED, linewidth=1.6
            )
        )
    axes.set_title(f"step {step.number}: image after it", fontsize=8.5)
    axes.axis("off")


def draw(model: Model) -> plt.Figure:
    """Draw the picture."""
    steps, codes = record_steps(model, PROMPT)
    chosen = choose_steps(steps, len(codes))
    positions = range(chosen[0].first, chosen[1].first + len(chosen[1].samples))
    column_of = {position: column for column, position in enumerate(positions)}
    figure = plt.figure(figsize=(7, 3.9), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 4.1))
    tokens = figure.add_subplot(grid[:, 1])
    for number, (step, earlier) in enumerate(zip(chosen, (None, chosen[0]), strict=True)):
        draw_image(figure.add_subplot(grid[number, 0]), model.tokenizer, codes, step)
        draw_step(tokens, model.tokenizer, step, column_of, number * STEP, earlier)
    tokens.set(xlim=(-1.9, len(positions) - 0.4), ylim=(STEP + LINE + 0.9, -0.6), aspect="equal")
    tokens.axis("off")
    return figure


if __name__ == "__main__":
    draw(lantern.load("embedded")).savefig(Path(__file__).with_suffix(".png"), dpi=200, metadata={"Software": None})
