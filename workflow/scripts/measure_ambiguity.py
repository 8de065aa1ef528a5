"""Measure the ambiguity of the target at every position of some images.

The measures are the probability of the most probable code, the sum of the ten largest probabilities, and the entropy.
"""

from lantern_models.checkpoints.target import load_target
from lantern_pipeline.data.code_dataset import load_codes
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.record_files import load_shards
from lantern_pipeline.data.tables import write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.exactness.likelihood import measure_ambiguity
from lantern_pipeline.schema.run_config import TextSettings

with job_log(snakemake):
    params, files, num_images = snakemake.params, snakemake.input, snakemake.params.num_images
    encoder = make_text_encoder(TextSettings(**params.text), params.source, files.text)
    # a run without held-out images: images of autoregressive decoding, which are samples of the target itself
    if files.records:
        prompts = read_prompts(files.prompts)
        (record,) = load_shards(files.records, [prompt.id for prompt in prompts]).values()
        codes, texts = record.codes, [prompt.text for prompt in prompts]
    else:
        held_out = load_codes(files.codes, files.captions, encoder)
        codes, texts = held_out.codes, held_out.captions
    execution = execution_of(snakemake)
    frame = measure_ambiguity(
        load_target(files.target).to(execution.device),
        encoder,
        codes[:num_images],
        texts[:num_images],
        # 1 is the target without guidance
        cfg_scales=(1.0, params.cfg_scale),
        batch_size=execution.scoring_batch_size,
    )
    write_table(snakemake.output[0], frame)
