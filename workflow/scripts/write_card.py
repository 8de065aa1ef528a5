"""Write card.json, the description of a finished run's model from which `lantern.load` loads it."""

import os
from pathlib import Path

from lantern.io import write_json
from lantern_pipeline.data.run_card import make_run_card
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake):
    params, folder = snakemake.params, Path(snakemake.output.card).parent
    # Snakemake has an empty list for a part that the run lacks
    found = {part: path for part, path in snakemake.input.items() if path}
    if "text" in found:
        found["text"] = resource_path(found["text"])
    # relative to the card, so that the folder can be moved
    files = {part: Path(os.path.relpath(path, folder)).as_posix() for part, path in found.items()}
    card = make_run_card(params.card, TextSettings(**params.text), params.source, Path(found["target"]), files)
    write_json(snakemake.output.card, card.to_dict())
