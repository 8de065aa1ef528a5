"""Measures the real images that FID, KID, precision and recall compare with, once for all rows."""

from lantern.io import save_tensors
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.measure.feature_extractors import load_extractors
from lantern_pipeline.measure.reference_statistics import measure_reference
from lantern_pipeline.runtime.job import job_log, resolve_device

with job_log(snakemake) as log:
    published = snakemake.params.settings
    files, device = dict(snakemake.input.items()), resolve_device(snakemake.config["device"])
    extractors = load_extractors(files, published["vgg16_layer"], device)
    place, name = resource_path(snakemake.input.images), published["reference"]["name"]
    features, metadata = measure_reference(
        place, name, extractors, published["preprocessing"], snakemake.config["metrics"]["batch_size"]
    )
    save_tensors(snakemake.output[0], features, metadata)
    log.info("%d images of %s, sha256 %s", metadata["num_images"], name, metadata["images_sha256"])
