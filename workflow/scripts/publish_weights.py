"""Write models/<name>/: the trained weights rounded to bfloat16, their digests, and how they were trained."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from lantern.io import atomic_path, read_json, write_json, write_text
from lantern_models.text.encoders import describe_features
from lantern_pipeline.archive.weights import describe_training, round_model
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.data.run_card import make_run_card
from lantern_pipeline.fetch.manifest import SUMS
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import RunConfig

with job_log(snakemake) as log, TemporaryDirectory() as workplace:
    files, config, folder = snakemake.input, snakemake.config, Path(snakemake.params.folder)
    trained = {name: Path(files[name]) for name in snakemake.params.models}
    reports = {name: read_json(path.with_name("report.json")) for name, path in trained.items()}
    rounded = {name: Path(workplace, f"{name}.safetensors") for name in trained}
    for name, path in trained.items():
        # A run with these weights checks that its prompts have the features of this training.
        features = {"text": describe_features(config["text"]["encoder"])} if name == "target" else {}
        round_model(path, rounded[name], features)
    training = describe_training(config, reports, rounded)
    # Into the clone only if all models could be rounded and described.
    for path in rounded.values():
        with atomic_path(folder / path.name) as temporary:
            shutil.copyfile(path, temporary)
    sums = "".join(f"{model['sha256']}  {model['file']}\n" for model in training["models"].values())
    write_text(folder / SUMS, sums)  # in the format of sha256sum
    write_json(folder / "training.json", training)
    parts = {part: rounded[part].name for part in ("target", "drafter", "tokenizer")}
    checked = RunConfig(**config)
    card = make_run_card(card_of(checked).to_dict(), checked.text, checked.data.source, rounded["target"], parts)
    write_json(folder / "card.json", {**card.to_dict(), "name": folder.name, "licence": "Apache-2.0"})
    log.info("wrote %s; README.md in the same folder is written by hand: check its numbers", folder)
