"""A look at everything from elsewhere that images are measured with, before hours of generation depend on it."""

from __future__ import annotations

from lantern_pipeline.downloads.manifest import resource_path
from lantern_pipeline.metrics.reference_statistics import check_images, load_reference
from lantern_pipeline.metrics.registry import Workbench, chosen, load_extractors


def check_metric_weights(bench: Workbench) -> dict[str, str]:
    """Loads every published ruler that a config chooses, one after the other, and opens the first real images.

    Args:
        bench: with the files of `lantern_pipeline.metrics.registry.published_files`.

    Returns:
        Key of metrics.published -> SHA-256 of its weights.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file holds other weights, or no images, or statistics of another extractor; names the file.
    """
    hashes = {}
    for choice in chosen(bench.metrics).values():
        if choice.has_reference:
            _check_sets(bench)
        elif choice.weights:
            choice.build(bench)
        hashes |= {key: bench.sha256(f"{key}_weights") for key in choice.weights}
    return hashes


def _check_sets(bench: Workbench) -> None:
    """Extractors, then what is known of the real images; a folder of them is measured later, by a rule of its own."""
    published = bench.published
    reference, preprocessing = published["reference"], published["preprocessing"]
    extractors = load_extractors(bench.files, published, bench.device)
    if reference["statistics"] is None:
        check_images(resource_path(bench.files.reference_images), preprocessing)
    else:
        load_reference(bench.files.reference_statistics, extractors, preprocessing, reference["name"])
