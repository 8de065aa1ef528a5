"""Animation of the race: several methods generate one prompt side by side, each at its recorded speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lantern.io import atomic_path
from lantern.prompts import Prompt
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.measure.speed.latency import TimedImages
from lantern_pipeline.tables.method_labels import label_family

SHOWN = ("autoregressive", "eagle1", "jacobi", "lantern_pp", "lantern_chain")  # at most one method of each name
WIDTH, GAP, HEAD, FOOT = 168, 12, 52, 24  # pixels: width of an image, gap between images, text above and below
FRAMES, FRAME_MS, HOLD_MS = 60, 80, 2500  # frames until the slowest method ends, time of each, time of the last one
FONT = Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")  # supports Greek letters
PAPER, INK, EMPTY = "white", "black", "#dddddd"


def draw_race(
    path: Path | str,
    timed: TimedImages,
    prompts: Sequence[Prompt],
    draw: Callable[[Tensor], np.ndarray],
    positions: Tensor,
) -> None:
    """Write the race of one typical prompt as an animated PNG.

    The prompt is the one with the median speed-up of its fastest shown method.

    Args:
        draw: function that decodes codes, integer (images, tokens), to pixels, uint8 (images, height, width, 3).
        positions: position of each code of an image among its tokens, int64 (lines, columns).
    """
    methods = _choose_methods(timed)
    place = {key: row for row, key in enumerate(zip(timed.prompt_ids, timed.method_ids, strict=True))}
    rows = [[place[prompt.id, method] for method in methods] for prompt in prompts]
    seconds = timed.step_seconds.double().sum(1)
    # Autoregressive decoding is the first of SHOWN.
    gains = [float(seconds[row[0]] / seconds[row].min()) for row in rows]
    chosen = sorted(range(len(gains)), key=gains.__getitem__)[(len(gains) - 1) // 2]  # lower median
    text, shown = prompts[chosen].text, rows[chosen]
    size = WIDTH, round(WIDTH * positions.shape[0] / positions.shape[1])
    pixels = [Image.fromarray(image).resize(size, Image.Resampling.NEAREST) for image in draw(timed.codes[shown])]
    labels = [label_family(method_columns(timed.metadata["methods"][method])) for method in methods]
    slowest = float(seconds[shown].max())
    frames = []
    # FRAMES intervals: the first frame is at 0 s, the last one at the end of the slowest image.
    for now in np.linspace(0, slowest, FRAMES + 1):
        states = [_state_at(timed, row, now) for row in shown]
        frames.append(_draw_frame(text, labels, pixels, positions.numpy(), states, float(now)))
    pace = [FRAME_MS] * FRAMES + [HOLD_MS]
    colours = frames[-1].quantize(256)  # of all images; with one palette, a frame stores only its changed pixels
    frames = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    with atomic_path(path) as temporary:
        # A viewer without animation shows the default image, which has the finished images. It is no frame, so that
        # `pace` has no time for it.
        moving = {"save_all": True, "append_images": frames, "default_image": True, "duration": pace, "loop": 0}
        frames[-1].save(temporary, "PNG", **moving)


def _choose_methods(timed: TimedImages) -> list[str]:
    """Return the ids of the methods to show, in the order of SHOWN: of each name, the one with the least total time."""
    total = dict.fromkeys(timed.method_ids, 0.0)
    for method, seconds in zip(timed.method_ids, timed.step_seconds.double().sum(1).tolist(), strict=True):
        total[method] += seconds
    chosen: dict[str, str] = {}
    for method in sorted(total, key=total.__getitem__):
        chosen.setdefault(timed.metadata["methods"][method]["name"], method)
    return [chosen[name] for name in SHOWN if name in chosen]


def _state_at(timed: TimedImages, row: int, now: float) -> tuple[int, int, float]:
    """Return tokens and forward passes `now` seconds after an image's begin, and the seconds of the whole image."""
    # Rows are padded with 0 to the number of tokens, and every real step emits at least one.
    lengths = timed.step_lengths[row][timed.step_lengths[row] > 0].long()
    ends = timed.step_seconds[row][: len(lengths)].double().cumsum(0)
    # The last frame is at the end of the slowest image, which must count as done although sums are rounded.
    done = int((ends <= now + 1e-9).sum())
    return int(lengths[:done].sum()), done, float(ends[-1])


def _draw_frame(
    text: str,
    labels: list[str],
    pixels: list[Image.Image],
    positions: np.ndarray,
    states: list[tuple[int, int, float]],
    now: float,
) -> Image.Image:
    """Draw the prompt and the clock at the top, the finished part of each image, and its forward passes below."""
    width, height = pixels[0].size
    frame = Image.new("RGB", (GAP + (width + GAP) * len(pixels), HEAD + height + FOOT), PAPER)
    pen, font = ImageDraw.Draw(frame), ImageFont.truetype(FONT, 12)
    pen.text((GAP, 6), text, INK, font)
    pen.text((frame.width - GAP, 6), f"{now:.2f} s", INK, font, anchor="ra")
    for column, (label, image, (tokens, forwards, seconds)) in enumerate(zip(labels, pixels, states, strict=True)):
        left = GAP + column * (width + GAP)
        pen.text((left, HEAD - 22), label, INK, font)
        pen.rectangle((left, HEAD, left + width - 1, HEAD + height - 1), EMPTY)
        # A mask of the grid, in the size of the image: a code is visible once its token is emitted.
        is_drawn = Image.fromarray(positions < tokens).resize(image.size, Image.Resampling.NEAREST)
        frame.paste(image, (left, HEAD), is_drawn)
        ended = f", done in {seconds:.2f} s" if seconds <= now + 1e-9 else ""
        pen.text((left, HEAD + height + 4), f"{forwards} forwards{ended}", INK, font)
    return frame
