"""The command `lantern` with its subcommands.

Docstrings of subcommands are their help texts. Functions import what they need when they run, so that `lantern --help`
does not wait for torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:
    sys.exit("lantern: the command needs more than the core; install it from a clone: pip install '.[pipeline]'")

RESULTS = Path("results")
app = typer.Typer(
    help="Lossless and relaxed speculative decoding for visual autoregressive models.", no_args_is_help=True
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        import lantern

        typer.echo(f"lantern {lantern.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Lossless and relaxed speculative decoding for visual autoregressive models."""
    # A terminal or a file in an encoding such as latin-1 lacks characters of our tables, such as a delta.
    if isinstance(sys.stdout, TextIOWrapper):  # a stream in its place may lack `reconfigure`
        sys.stdout.reconfigure(errors="replace")


@app.command()
def sample(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts of the images, e.g. 'a small white ring above a large blue triangle on grass'."),
    ] = None,
    output: Annotated[Path, typer.Option(help="File to write, which ends in .png or .pdf.")] = Path("sample.png"),
    method: Annotated[
        list[str] | None,
        typer.Option(help="A preset and its parameters, e.g. 'lantern k=20 delta=0.1'; may be repeated."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Height and width in pixels, e.g. 1152x768; only of Emu3 and GLM-Image.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="As in `lantern bench`, e.g. fashion.")] = None,
    experiment: Annotated[str | None, typer.Option(help="Name of the experiment, if several are finished.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS,
) -> None:
    """Generate images of prompts with a few methods, and compare them.

    The models are those that --model names, those of a finished experiment, or, if there is no finished experiment,
    the shipped model "embedded". The command prints the target's forward passes, the seconds, and which images equal
    the image of autoregressive decoding.
    """
    import lantern
    from lantern_models.loading import find_shipped
    from lantern_pipeline.archive.provenance import FILE_NAME
    from lantern_pipeline.cli_sample import draw_samples, read_size, sample_prompt, table_of
    from lantern_pipeline.cli_words import check_output_file, read_method
    from lantern_pipeline.figures.style import FIGURE_SUFFIXES, save_figure

    with _one_sentence():
        # Mistakes are reported before a large model is loaded.
        check_output_file(output, FIGURE_SUFFIXES)
        for text in method or []:
            read_method(text, "sample")
        sides = None if size is None else read_size(size)
        # Someone who names results wants their models, not the shipped one.
        has_run = experiment or results != RESULTS or any(results.glob(f"*/{FILE_NAME}"))
        if model is None and not has_run and (weights := find_shipped("models/embedded")):
            typer.echo(f"no experiment is finished yet: generating images with {weights}")
            model = "embedded"
        loaded = lantern.load(model or _finished_experiment(results, experiment))
        texts = prompts or [""]  # `sample_prompt` refuses "" and shows an example
        samples = [sample_prompt(loaded, text, method or [], sides) for text in texts]
        save_figure(draw_samples(texts, samples), [output])
    for text, row in zip(texts, samples, strict=True):
        typer.echo(table_of(row) if len(texts) == 1 else f"{text}\n{table_of(row)}\n")
    typer.echo(f"wrote {output}")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def pack() -> None:
    """Raise an error that names the replacement of the removed subcommand `pack`, whatever its arguments."""
    with _one_sentence():
        raise ValueError("pack was removed: `zip -r FILE results/NAME` writes what `lantern verify FILE` checks")


@app.command()
def verify(
    results: Annotated[Path, typer.Argument(help="results/<experiment> of a finished run, or a zip file of it.")],
    images: Annotated[
        int, typer.Option(help="Number of images to generate again; 0 compares the checksums only.", min=0)
    ] = 4,
    seed: Annotated[int, typer.Option(help="Random seed of the choice of these images.")] = 0,
    models: Annotated[
        Path | None, typer.Option(help="results/<experiment> with converted models that the results lack.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device that generates them: auto, cpu or cuda.")] = "cpu",
) -> None:
    """Compare results with the checksums in their provenance.json, then generate a sample of their images again."""
    from tempfile import TemporaryDirectory

    from lantern_pipeline.archive.provenance import FILE_NAME, compare_code
    from lantern_pipeline.archive.redraw import redraw
    from lantern_pipeline.archive.verify import check_files, files_outside, open_results, read_provenance, shorten
    from lantern_pipeline.fetch.manifest import describe_file
    from lantern_pipeline.job.context import resolve_device

    outcomes: Counter = Counter()
    with _one_sentence(), TemporaryDirectory(prefix="lantern-") as workplace:
        folder = open_results(results, Path(workplace))
        provenance = read_provenance(folder)
        num_files = check_files(folder, provenance)
        sha256 = describe_file(folder / FILE_NAME)["sha256"]
        typer.echo(f"checksums: {num_files} files are those of {FILE_NAME} (SHA-256 of that file: {sha256})")
        if outside := files_outside(folder, provenance):
            typer.echo(f"not listed in {FILE_NAME}, therefore not compared: {_printable(shorten(outside))}")
        typer.echo(f"code: {compare_code(provenance, 'generate_images.py')}")
        is_exact = provenance["config"].get("generation", {}).get("dtype") == "float32"
        options = {"seed": seed, "models": models, "device": resolve_device(device)}
        for name, is_same in redraw(folder, provenance, images, **options):
            # bfloat16 rounds so coarsely that another device may choose other tokens.
            outcome = "equal" if is_same.all() else "differs" if is_exact else "not comparable"
            outcomes[outcome] += 1
            # `argmin` returns the first of equal minima: the first False.
            where = "" if is_same.all() else f", the first difference at token {int(is_same.int().argmin())}"
            typer.echo(f"{outcome}: {_printable(name)}: {int(is_same.sum())} of {len(is_same)} tokens{where}")
        if outcomes["differs"]:
            raise ValueError(
                f"{outcomes['differs']} of {images} images generated again differ from those of {results}; on "
                "another kind of CPU or GPU, rounding may decide otherwise between two almost equal tokens"
            )
    found = ", ".join(f"{num} {outcome}" for outcome, num in outcomes.items())
    typer.echo(f"verified: checksums; images generated again: {found or 'none'}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def audit(
    context: typer.Context,
    sampler: Annotated[
        str,
        typer.Argument(
            help="A preset, 'transformers', module:function of a sampler, or module:Class of an acceptance or a "
            "drafter. Parts of a method follow, e.g. --k 4 --delta 0.1 --tree chain3."
        ),
    ],
    num: Annotated[int | None, typer.Option(help="Number of sequences. By default 50,000.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sequences.")] = 0,
    world: Annotated[
        str, typer.Option(help="Arguments of lantern_audit.world.make_world, e.g. 'vocab_size=4 columns=3'.")
    ] = "",
) -> None:
    """Test whether a sampler is lossless, on a target whose sequences can all be listed (docs/audit.md).

    The exit code is 1 if the sampler differs from the target.
    """
    import torch

    import lantern
    from lantern_audit.world import make_world
    from lantern_pipeline.cli_words import check_parts, read_options, read_values

    # For tensors as small as these, several threads are slower than one.
    torch.set_num_threads(1)
    _find_modules_here()
    with _one_sentence():
        parts = read_options(context.args)
        check_parts(parts, sampler, "audit")
        sizes = read_values(world.split())
        # A wrong name would otherwise be Python's TypeError, with a traceback.
        known = list(signature(make_world).parameters)
        if unknown := [name for name in sizes if name not in known]:
            raise ValueError(f"a world has {', '.join(known)}, got {unknown[0]}; leave it out")
        result = lantern.audit(sampler, make_world(**sizes) if sizes else None, num, seed=seed, **parts)
    typer.echo(result)
    if result.has_difference:
        raise typer.Exit(1)


@app.command()
def predict(
    model: Annotated[str | None, typer.Option(help="llamagen_stage1 (the default), janus-pro-7b or glm-image.")] = None,
    gpu: Annotated[str | None, typer.Option(help="a100, h100 (the default) or h200.")] = None,
    bench: Annotated[
        Path | None, typer.Option(help="File of lantern bench --output, whose step costs replace model and GPU.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A preset; repeat it for several. By default jacobi and eagle1, with --bench only jacobi. With "
            "--bench also its parameters, e.g. 'jacobi tree=chain15'."
        ),
    ] = None,
    tokens_per_forward: Annotated[
        float | None,
        typer.Option(help="Tokens per forward pass of these methods; measured on the shapes dataset by default."),
    ] = None,
) -> None:
    """Predict seconds per image and speed-up from estimates for a GPU, or from step costs of your own machine.

    The relative step cost of a method is the time of its decoding step, in steps of autoregressive decoding. Nothing is
    measured. docs/gpu.md explains the estimates, docs/bench.md the prediction from measured step costs.
    """
    from lantern_pipeline.cli_predict import predict_from_bench, predict_gpu

    with _one_sentence():
        # The defaults are None, so that a model or GPU which the user has named beside --bench is noticed.
        if bench is None:
            typer.echo(predict_gpu(model or "llamagen_stage1", gpu or "h100", method or [], tokens_per_forward))
        elif model or gpu:
            raise ValueError("--bench states the model and the GPU, got --model or --gpu too; leave them out")
        else:
            typer.echo(predict_from_bench(bench, method or [], tokens_per_forward))


@app.command()
def bench(
    model: Annotated[
        str,
        typer.Argument(help="embedded, fashion, a published model, the folder of a run, or one of transformers."),
    ] = "embedded",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Time steps at the sizes of the model, without its weights.")
    ] = False,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="With --random-weights: tiny sizes, to try the command.")
    ] = False,
    methods: Annotated[
        str, typer.Option(help="Presets with parameters, e.g. 'jacobi, lantern k=20 delta=0.1'. By default a few.")
    ] = "",
    trees: Annotated[
        str, typer.Option(help="Trees, e.g. 'chain5, chain9'. Every method is measured with each of them.")
    ] = "",
    prompts: Annotated[Path | None, typer.Option(help="File of prompts: txt, json, jsonl, csv, tsv or zip.")] = None,
    num: Annotated[int, typer.Option(help="Number of prompts; of no use with --random-weights.", min=1)] = 8,
    temperature: Annotated[float | None, typer.Option(help="Temperature; by default that of the model.")] = None,
    batch: Annotated[int, typer.Option(help="Images that are decoded together, for images per second.", min=1)] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds: the fastest counts, of steps the median.", min=1)] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    output: Annotated[
        Path | None, typer.Option(help="Folder for bench.json and race.html, written after each round.")
    ] = None,
) -> None:
    """Measure the speed-up of a model's methods over autoregressive decoding on this machine (docs/bench.md)."""
    from lantern_pipeline.cli_bench import bench as measure
    from lantern_pipeline.cli_bench import choose_methods, load_subject, save_race, save_report, table_of
    from lantern_pipeline.cli_words import check_output_folder
    from lantern_pipeline.job.context import resolve_device

    _find_modules_here()
    table = ""
    with _one_sentence():
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            check_output_folder(output)
        choose_methods(methods, trees, has_draft_model=False)  # only its errors, before a large model is loaded
        place = {"device": str(resolve_device(device)), "dtype": dtype}
        loaded, chosen = load_subject(model, prompts, num, random_weights=random_weights, is_tiny=tiny, **place)
        options = {"temperature": temperature, "batch_size": batch, "num_rounds": rounds}
        try:
            # Written after every round, so that an interruption loses one round at most.
            for report, images in measure(loaded, methods, trees, chosen, **options):
                table = table_of(report)
                if output is not None:
                    save_report(output, model, report)
                if output is not None and chosen is not None:
                    save_race(output, loaded, chosen, images)
        except KeyboardInterrupt as interrupt:
            typer.echo(table or "interrupted before the first round was complete")
            # The exit code of shells for Ctrl-C: 128 + SIGINT.
            raise typer.Exit(130) from interrupt
    typer.echo(table)


def _find_modules_here() -> None:
    # The module of module:name may be a file here. At the end of the path, no file here hides a library.
    sys.path.append(str(Path.cwd()))


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Print the errors whose causes a user can correct as one sentence without a traceback, and exit with code 1."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        # `str` of an OSError begins with a number such as [Errno 28], which is worth it only if a file name follows.
        reason = error.strerror if isinstance(error, OSError) and error.filename is None and error.strerror else error
        typer.echo(f"lantern: {_printable(str(reason))}", err=True)
        raise typer.Exit(1) from error


def _printable(text: str) -> str:
    """Replace control characters of a text, so that a terminal does not execute them."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _finished_experiment(results: Path, experiment: str | None) -> Path:
    """Return the folder of the experiment, or of the only one that is finished if its name is None."""
    from lantern_pipeline.archive.provenance import FILE_NAME

    # A run writes its provenance last, so this file marks a finished experiment.
    found = sorted(path.parent.name for path in results.glob(f"*/{FILE_NAME}"))
    if experiment is None and len(found) == 1:
        return results / found[0]
    if experiment in found:
        return results / experiment
    if not found:
        raise ValueError(
            f"{results} holds no finished experiment: run `make reproduce` to the end first, or name the folder of "
            "its results with --results"
        )
    missing = f"no {experiment} but " if experiment else ""
    raise ValueError(
        f"{results} holds {missing}{len(found)} finished experiments: choose with --experiment {' | '.join(found)}"
    )


if __name__ == "__main__":
    app()
