"""Write the captions of training images and held-out images, with ids."""

from lantern_pipeline.data.image_sources import training_captions
from lantern_pipeline.data.prompt_files import write_prompts
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.job.context import job_log
from lantern_pipeline.schema.run_config import Captions

with job_log(snakemake) as log:
    params, file = snakemake.params, snakemake.input.get("file")
    # only data.source captions reads a file; other captions belong to images
    captions = Captions(**params.captions) if params.captions else None
    path = resource_path(file) if file else None
    found = training_captions(params.source["data"], params.num_val, params.seed, captions, path)
    for split, prompts in found.items():
        write_prompts(snakemake.output[split], prompts)
        log.info("wrote %d captions of %s", len(prompts), split)
