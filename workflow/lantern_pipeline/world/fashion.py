"""Captions for Fashion-MNIST, a dataset of photographs of single garments.

A caption is "a {tone} {pattern} {class}", such as "a dark patterned dress". Only trousers have no article. The class is
the dataset's label. The tone and the pattern follow from the brightness and the contrast of the pixels.
"""

from __future__ import annotations

from itertools import product

import numpy as np

CLASSES = (  # in the order of the labels
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
TONES = ("dark", "grey", "light")
PATTERNS = ("plain", "patterned")
HEADS: dict[str, tuple[str, ...]] = {"tone": TONES, "pattern": PATTERNS, "class": CLASSES}
VOCABULARY = ("a", *TONES, *PATTERNS, *CLASSES)
_LOOKS = f"({'|'.join(TONES)}) ({'|'.join(PATTERNS)})"
_SINGLE = "|".join(name for name in CLASSES if name != "trousers")
CAPTIONS = f"a {_LOOKS} ({_SINGLE})|{_LOOKS} trousers"  # regular expression of all captions
GARMENT_LEVEL = 20  # pixels above this grey level, of 255, belong to the garment
# Quantiles of the training half, rounded: thirds of the brightness and the median of the contrast. Unit: grey levels.
TONE_BOUNDS = (142.0, 182.4)
PATTERN_BOUND = 17.17
_CHUNK = 4096  # number of images that are measured at once

Garment = tuple[str, str, str]  # tone, pattern, class

# One combination per class. Training images have all other combinations of a class with a tone and a pattern.
HELD_OUT = frozenset(
    {
        ("dark", "patterned", "t-shirt"),
        ("grey", "plain", "trousers"),
        ("light", "patterned", "pullover"),
        ("grey", "patterned", "dress"),
        ("grey", "plain", "coat"),
        ("grey", "plain", "sandal"),
        ("dark", "plain", "shirt"),
        ("light", "patterned", "sneaker"),
        ("dark", "plain", "bag"),
        ("dark", "patterned", "boot"),
    }
)


def caption(garment: Garment) -> str:
    """Write the caption of a garment: "a dark patterned dress". Or "dark plain trousers"."""
    words = " ".join(garment)
    return words if garment[-1] == "trousers" else f"a {words}"


GARMENTS = {caption(garment): garment for garment in product(TONES, PATTERNS, CLASSES)}


def attributes_of(text: str) -> dict[str, str] | None:
    """Return the attributes that a caption names: "tone", "pattern" and "class" -> value. None for other texts.

    Case and full stops at the end are ignored.
    """
    garment = GARMENTS.get(" ".join(text.lower().rstrip(" .").split()))
    return None if garment is None else dict(zip(HEADS, garment, strict=True))


def read_garments(images: np.ndarray, labels: np.ndarray) -> list[Garment]:
    """Return (tone, pattern, class) of each garment, from grey levels (images, height, width) and labels (images,)."""
    # A float copy of all 60,000 images takes 188 MB, and the measurement needs several.
    chunks = [measure_garments(images[start : start + _CHUNK]) for start in range(0, len(images), _CHUNK)]
    brightness, contrast = np.concatenate(chunks, axis=1)
    tones = np.digitize(brightness, TONE_BOUNDS)  # number of bounds that are not above: 0, 1 or 2
    patterns = (contrast > PATTERN_BOUND).astype(int)
    rows = zip(tones, patterns, labels, strict=True)
    return [(TONES[tone], PATTERNS[pattern], CLASSES[label]) for tone, pattern, label in rows]


def measure_garments(images: np.ndarray) -> np.ndarray:
    """Measure the brightness and the contrast of garments, in grey levels, (2, images).

    The brightness is the mean of the garment's pixels. The contrast is the mean absolute difference between neighbours
    inside the garment. A pixel is inside if it and its four neighbours belong to the garment. Both are 0 if there are
    no such pixels.
    """
    levels = images.astype(np.float32)
    garment = images > GARMENT_LEVEL
    # Beyond the frame is no garment, so pixels at the border have a neighbour outside.
    framed = np.pad(garment, ((0, 0), (1, 1), (1, 1)))
    # Without the outline, whose contrast to the black background would hide that of the pattern.
    inside = garment & framed[:, :-2, 1:-1] & framed[:, 2:, 1:-1] & framed[:, 1:-1, :-2] & framed[:, 1:-1, 2:]
    across, down = np.abs(np.diff(levels, axis=2)), np.abs(np.diff(levels, axis=1))
    pairs_across, pairs_down = inside[:, :, 1:] & inside[:, :, :-1], inside[:, 1:] & inside[:, :-1]
    differences = _sum(across * pairs_across) + _sum(down * pairs_down)
    num_pairs = _sum(pairs_across) + _sum(pairs_down)
    brightness = _sum(levels * garment) / _sum(garment).clip(min=1)
    return np.stack([brightness, differences / num_pairs.clip(min=1)])


def _sum(values: np.ndarray) -> np.ndarray:
    return values.sum(axis=(1, 2), dtype=np.float64)
