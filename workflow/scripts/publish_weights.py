"""Writes models/embedded/: the trained weights, rounded, with how they were made and what rounding changed."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from lantern.io import atomic_path, read_json, write_json, write_text
from lantern_pipeline.archive.weights import describe_training, list_sums, render_readme
from lantern_pipeline.data.text_encoders import describe_features
from lantern_pipeline.downloads.manifest import SUMS
from lantern_pipeline.figures.loss_curves import draw_loss_curves
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.runtime.job import job_log
from lantern_pipeline.training.rounding import measure_models, round_model

with job_log(snakemake) as log, TemporaryDirectory() as workplace:
    files, config, folder = snakemake.input, snakemake.config, Path(snakemake.params.folder)
    trained = {name: Path(files[name]) for name in snakemake.params.models}
    reports = {name: read_json(path.with_name("report.json")) for name, path in trained.items()}
    rounded = {name: Path(workplace, f"{name}.safetensors") for name in trained}
    for name, path in trained.items():
        round_model(path, rounded[name], {"text": describe_features(config["text"])} if name == "target" else {})
    rounding = {"before": measure_models(trained, config), "after": measure_models(rounded, config)}
    training = describe_training(config, reports, rounded, rounding)
    for path in rounded.values():
        with atomic_path(folder / path.name) as temporary:
            shutil.copyfile(path, temporary)
    write_text(folder / SUMS, list_sums(training))
    write_json(folder / "training.json", training)
    curves = draw_loss_curves({name: report["history"] for name, report in reports.items()})
    save_figure(curves, [folder / "loss_curves.png"])
    write_text(folder / "README.md", render_readme(training))
    log.info("wrote %s: %s", folder, rounding)
