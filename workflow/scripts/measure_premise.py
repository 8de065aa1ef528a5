"""Measure LANTERN's premise: what happens if nearest codes, or random codes, replace the codes of images and drafts."""

from lantern_pipeline.data.decoders import load_job_decoders, load_tables
from lantern_pipeline.data.image_sources import make_source
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.exactness.total_variation import visit_exactly
from lantern_pipeline.measure.premise import KEYS, mean_ambiguity, relax_acceptance, score_replacements
from lantern_pipeline.measure.quality.metric_models import load_job_metric_models
from lantern_pipeline.schema.run_config import FidelitySettings, Premise, TextSettings, TotalVariationNodes

with job_log(snakemake):
    params, files = snakemake.params, snakemake.input
    settings, cfg_scale = Premise(**params.settings), params.sampling["cfg_scale"]
    # Captions are read word by word, which needs no files of the encoder.
    encoder = make_text_encoder(TextSettings(**params.text), params.source, [])
    models = load_job_metric_models(snakemake, encoder)
    (decoder,) = load_job_decoders(snakemake, params.runs)
    tables = load_tables(files.nearest_codes, models.device)
    options = {"num_resamples": params.bootstrap_resamples, "seed": params.noise_seed}
    # first half: replace the codes of held-out images
    images = score_replacements(
        make_source(params.images["data"], params.seed),
        models,
        tables,
        settings.ks,
        num_images=settings.num_images,
        cfg_scale=cfg_scale,
        fidelity=FidelitySettings(**params.fidelity),
        options=options,
    )
    at_nodes = TotalVariationNodes(**params.total_variation)
    # second half: LANTERN's acceptance at nodes of exact decoding, with the same k
    nodes = visit_exactly(
        decoder,
        read_prompts(files.prompts)[: at_nodes.num_images],
        encoder,
        run_seed=params.noise_seed,
        max_nodes=at_nodes.max_nodes,
        batch_size=execution_of(snakemake).batch_size,
    )
    drafts = relax_acceptance(nodes, tables, settings.ks, settings.deltas, options)
    table = images.merge(drafts, on=list(KEYS), validate="one_to_one")
    ambiguity = mean_ambiguity(read_table(files.ambiguity), cfg_scale)
    write_table(snakemake.output[0], table.assign(**ambiguity, **models.describe()))
