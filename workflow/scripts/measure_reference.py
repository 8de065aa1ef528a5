"""Measures the real images that FID, KID, precision and recall compare with, once for all rows."""

from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.measure.feature_extractors import load_extractors
from lantern_pipeline.measure.reference_statistics import measure_reference, save_reference
from lantern_pipeline.measure.registry import MetricFiles
from lantern_pipeline.runtime.job import job_log, resolve_device

with job_log(snakemake) as log:
    published = snakemake.params.settings
    files, device = MetricFiles.among(dict(snakemake.input.items())), resolve_device(snakemake.params.device)
    extractors = load_extractors(files, published["vgg16_layer"], device)
    reference = measure_reference(
        resource_path(snakemake.input.images),
        published["reference"]["name"],
        extractors,
        published["preprocessing"],
        snakemake.params.batch_size,
    )
    save_reference(snakemake.output[0], reference)
    log.info("%d images of %s, sha256 %s", reference.num_images, reference.name, reference.sha256)
