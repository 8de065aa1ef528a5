"""The command `lantern`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Lossless and relaxed speculative decoding for visual autoregressive models.", no_args_is_help=True
)


@app.callback()
def main() -> None:
    """Lossless and relaxed speculative decoding for visual autoregressive models."""


@app.command()
def sample(
    prompt: Annotated[
        str, typer.Argument(help="What to draw, e.g. 'a large red circle left of a small blue square on grass'.")
    ],
    output: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("sample.png"),
    configfile: Annotated[list[Path] | None, typer.Option(help="Config files, later ones over earlier ones.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Draws one prompt with every configured method side by side; prints target forwards and seconds."""
    try:
        rows = _draw(prompt, output, configfile or [Path("config.yaml")], results)
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.filename is None else error
        typer.echo(f"lantern: {reason}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{'method':<32} {'target forwards':>16} {'tokens/forward':>15} {'seconds':>9} {'speed-up':>9}")
    for row in rows:
        typer.echo(f"{row[0]:<32} {row[1]:>16d} {row[2]:>15.2f} {row[3]:>9.3f} {row[4]:>9.2f}")
    typer.echo(f"wrote {output}")


def _draw(prompt: str, output: Path, configfiles: list[Path], results: Path) -> list[tuple]:
    """Writes the picture; returns (method, target forwards, tokens per forward, seconds, speed-up) per method."""
    import numpy as np
    import torch

    from lantern.figures.side_by_side import draw_side_by_side
    from lantern.figures.style import save_figure
    from lantern.side_by_side import TrainedRun

    torch.set_num_threads(1)  # one thread decodes faster than two
    samples = TrainedRun(load_config(configfiles), results).sample(prompt)
    figure = draw_side_by_side(
        prompt,
        np.stack([sample.pixels.numpy() for sample in samples]),
        [sample.run.spec.method_id for sample in samples],
        [f"{sample.target_forwards} forwards, {sample.seconds:.2f} s" for sample in samples],
    )
    save_figure(figure, [output])
    baseline = next(s.seconds for s in samples if s.run.spec.method_id == "autoregressive")
    return [
        (
            sample.run.spec.method_id,
            sample.target_forwards,
            sample.num_tokens / sample.target_forwards,
            sample.seconds,
            baseline / sample.seconds,
        )
        for sample in samples
    ]


def load_config(paths: list[Path]) -> dict[str, Any]:
    """Reads config files, lays later ones over earlier ones key by key (lists as a whole) and checks the result.

    Raises:
        ValueError: something is wrong with the configuration; one sentence.
        FileNotFoundError: a file is missing.
    """
    from lantern.config import load_yaml, validate_config

    config: dict[str, Any] = {}
    for path in paths:
        config = _overlay(config, load_yaml(path))
    validate_config(config)
    return config


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(below)
    for key, value in above.items():
        is_section = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if is_section else copy.deepcopy(value)
    return merged
