"""Compute the features of real images with which FID, KID, precision and recall compare generated images.

They are computed once for all methods.
"""

from lantern.io import save_tensors
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.job.context import execution_of, job_log
from lantern_pipeline.measure.quality.feature_extractors import load_extractors
from lantern_pipeline.measure.quality.reference_statistics import measure_reference

with job_log(snakemake) as log:
    params, files = snakemake.params, dict(snakemake.input.items())
    execution = execution_of(snakemake)
    extractors = load_extractors(files, params.vgg16_layer, execution.device)
    features, metadata = measure_reference(
        resource_path(snakemake.input.images),
        params.reference_name,
        extractors,
        params.preprocessing,
        execution.scoring_batch_size,
    )
    # With the hash of the images: FID depends on the exact set.
    save_tensors(snakemake.output[0], features, metadata)
    log.info("%d images of %s, sha256 %s", metadata["num_images"], params.reference_name, metadata["images_sha256"])
