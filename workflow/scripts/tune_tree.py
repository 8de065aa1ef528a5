"""Measures acceptance and cost, and writes the tree of every tuned method with the speed-ups that are predicted."""

from lantern.generation import load_decoding_models
from lantern.io import write_json
from lantern.methods import MethodSpec
from lantern_pipeline.analysis.tuned_trees import TreeTuner
from lantern_pipeline.data.decoders import load_tables
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.runtime.job import job_log, resolve_device

with job_log(snakemake) as log:
    params, files, device = snakemake.params, snakemake.input, resolve_device(snakemake.params.device)
    tuner = TreeTuner(
        models=load_decoding_models(files.target, files.drafter or None, device=device, dtype=params.dtype),
        tables=load_tables(files.nearest_codes, device),
        sampling=params.sampling,
        prompts=read_prompts(files.prompts[0]),
        encoder=make_text_encoder(params.text, params.source, files.text),
        settings=params.settings,
        batch_size=params.batch_size,
        stepping=params.stepping,
        timed_threads=params.timed_threads,
        seed=params.training_seed,
    )
    trees, predicted = tuner.tune([(MethodSpec(**method), temperature) for method, temperature in params.runs])
    write_table(snakemake.output.predicted, predicted)
    write_json(snakemake.output.trees, trees)
    for name, found in trees["methods"].items():
        log.info("%s: %s", name, found["tree_shape"])
