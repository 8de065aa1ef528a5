"""Measure the images of methods, of one prompt set and temperature, with the metrics of single images.

An image is left out if its codes equal those of the autoregressive image, because both have the same scores. A method
is left out if the output already has its scores, made from the same images, models, code and settings.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from lantern.io import DamagedFileError
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import hash_origin, job_log
from lantern_pipeline.measure.quality.evaluate_images import load_scores, save_scores, score_method
from lantern_pipeline.measure.quality.metric_models import load_job_metric_models
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake) as log:
    params, files, output = snakemake.params, snakemake.input, Path(snakemake.output[0])
    prompts = read_prompts(files.prompts)
    ids, record_files = [prompt.id for prompt in prompts], {*files.baseline, *files.records}
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    models = load_job_metric_models(snakemake, encoder)
    baseline = load_shards(files.baseline, ids)[BASELINE]
    # Records count by their codes, which may be the same after they were generated again.
    common = hash_origin(snakemake, [file for file in snakemake.input if file not in record_files]).encode()
    try:
        scores = load_scores(output)
    except (FileNotFoundError, DamagedFileError):
        scores = {}
    found = {}
    for name, records in load_shards(files.records, ids).items():
        parts = common, records.codes.numpy().tobytes(), baseline.codes.numpy().tobytes()
        made_from = hashlib.sha256(b"".join(parts)).hexdigest()
        if name not in scores or scores[name].made_from != made_from:
            log.info("scoring %s", name)
            scores[name] = replace(score_method(records, baseline, prompts, models), made_from=made_from)
        found[name] = scores[name]
    save_scores(output, found.values())
