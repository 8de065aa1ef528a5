"""Measures the real images that FID, KID, precision and recall compare with, once for all rows."""

from lantern.job import job_log, resolve_device
from lantern.metrics.choices import load_extractors
from lantern.metrics.reference_set import measure_reference, save_reference
from lantern.resources.manifest import resource_path

with job_log(snakemake) as log:
    published = snakemake.params.settings
    extractors = load_extractors(snakemake.input, published, resolve_device(snakemake.params.device))
    reference = measure_reference(
        resource_path(snakemake.input.images),
        published["reference"]["name"],
        extractors,
        published["preprocessing"],
        snakemake.params.batch_size,
    )
    save_reference(snakemake.output[0], reference)
    log.info("%d images of %s, sha256 %s", reference.num_images, reference.name, reference.sha256)
