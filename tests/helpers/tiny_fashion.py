"""A tiny Fashion-MNIST: IDX files with garments of known tone and pattern."""

import gzip
from itertools import product

import numpy as np

from lantern_pipeline.data.fashion_files import HALVES, image_file, label_file
from lantern_pipeline.world.fashion import CLASSES, PATTERNS, TONES

LEVELS = {"dark": 80, "grey": 150, "light": 200}
STRIPES = 40  # grey levels between neighbouring columns of a patterned garment


def draw_garment(tone, pattern):
    """Return the grey levels of a square garment, uint8 (28, 28)."""
    image = np.zeros((28, 28), np.uint8)
    image[4:24, 6:22] = LEVELS[tone]
    if pattern == "patterned":
        image[4:24, 6:22:2] += STRIPES
    return image


def write_idx(path, array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def write_fashion(folder, copies=2):
    """Write both halves of the dataset, each with all 60 combinations, `copies` times.

    The first pixel of each image is 1 in the training half and 2 in the test half.
    """
    folder.mkdir(exist_ok=True)
    garments = list(product(TONES, PATTERNS, CLASSES)) * copies
    for mark, half in enumerate(HALVES, start=1):
        images = np.stack([draw_garment(tone, pattern) for tone, pattern, _ in garments])
        images[:, 0, 0] = mark
        write_idx(folder / image_file(half), images)
        labels = np.array([CLASSES.index(name) for _, _, name in garments], np.uint8)
        write_idx(folder / label_file(half), labels)
    return folder
