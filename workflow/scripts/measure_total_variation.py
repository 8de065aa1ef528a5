"""Measure total variation between the distributions of the emitted token and of the target's token.

It is measured for each method, and for each relaxed acceptance as a function of delta, which limits the relaxation.
"""

import pandas as pd

from lantern.codebook import load_nearest_codes
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_models.checkpoints.target import load_target
from lantern_pipeline.data.decoders import load_job_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.exactness.total_variation import TotalVariationStudy, tv_curves
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.schema.run_config import TextSettings, TotalVariation

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    device = execution_of(snakemake).device
    prompts = read_prompts(files.prompts)
    records = load_shards(files.records, [prompt.id for prompt in prompts])
    settings = TotalVariation(**params.settings)
    options = {"num_resamples": params.bootstrap_resamples, "seed": params.noise_seed}
    study = TotalVariationStudy(
        target_model=load_target(files.target).to(device),
        encoder=make_text_encoder(TextSettings(**params.text), params.source, files.text),
        prompts=prompts[: settings.num_images],
        tested_prompts=prompts[: settings.num_tested],
        codebook=load_tokenizer(files.tokenizer).decoded_codebook.detach(),
        settings=settings,
        options=options,
        batch_size=records[BASELINE].metadata["batch_size"],  # a size that fitted into memory during generation
    )
    # each method at the nodes that it visits itself
    decoders = load_job_decoders(snakemake, params.runs)
    write_table(snakemake.output.methods, study.measure_methods(decoders, records).assign(**params.place))
    curves = pd.DataFrame(columns=["rule", "delta"])
    # All acceptances at the same nodes of a draft model. Without one, the table of curves is empty. Any decoder serves:
    # only its models and its sampling are used.
    if files.drafter:
        nodes, nearest = study.common_nodes(decoders[0]), load_nearest_codes(files.nearest, device)
        curves = tv_curves(
            nodes,
            nearest,
            k=settings.k,
            deltas=settings.deltas,
            num_children=settings.num_children,
            options=options,
        )
    write_table(snakemake.output.curves, curves)
