"""Shapes dataset: captioned procedural images of one or two objects on a random background.

Scenes and images are pure functions of a seed and an index. Captions follow one grammar: "a {size} {colour} {shape}
[{relation} a {size} {colour} {shape}] on {background}". *Object 0* is the left or upper one, or the only one.

Lengths are in units of 1/48 of the image's side. x is positive to the right and y downwards. Random details of an image
are computed from uniform numbers in [0, 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lantern_pipeline.world.textures import (
    COARSE_SIZE,
    NUM_COARSE,
    NUM_PARAMETERS,
    REFERENCE_SIZE,
    TEXTURES,
    TextureNoise,
    paint_backgrounds,
)


def _triangle(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    # Intersection of the half-planes above the base and inside the two sides: 0.866 and 0.5 are cos and sin of 30
    # degrees.
    below = y - 0.72 * r
    return torch.maximum(below, 0.866 * x.abs() - 0.5 * (y + 0.02 * r) - 0.56 * r)


def _cross(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    long, short = 1.05 * r, 0.37 * r
    # A rectangle is the intersection (maximum) of two strips, the cross the union (minimum) of two rectangles.
    upright = torch.maximum(x.abs() - short, y.abs() - long)
    return torch.minimum(upright, torch.maximum(x.abs() - long, y.abs() - short))


# Shape -> function of the offsets x and y from the centre and the radius r. It returns the signed distance to the
# outline, negative inside. Near corners it is approximate: maxima and minima of the distances to straight edges.
DISTANCES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "circle": lambda x, y, r: (x * x + y * y).sqrt() - r,
    "square": lambda x, y, r: torch.maximum(x.abs(), y.abs()) - 0.88 * r,
    "triangle": _triangle,
    "cross": _cross,
    "ring": lambda x, y, r: ((x * x + y * y).sqrt() - 0.73 * r).abs() - 0.29 * r,
}
SHAPES = tuple(DISTANCES)
COLOURS = {
    "red": (0.88, 0.10, 0.13),
    "yellow": (0.98, 0.84, 0.12),
    "green": (0.08, 0.74, 0.30),
    "blue": (0.12, 0.30, 0.93),
    "purple": (0.68, 0.20, 0.88),
    "white": (0.97, 0.97, 0.97),
}
SIZES = {"small": 7.6, "large": 11.0}  # radius
BACKGROUNDS = tuple(TEXTURES)
RELATIONS = ("left of", "right of", "above", "below")
# (colour, shape) that only split "unseen" has. Each of these colours and shapes also occurs in other combinations.
HELD_OUT = frozenset(
    {("red", "cross"), ("yellow", "triangle"), ("green", "square"), ("blue", "ring"), ("purple", "circle")}
)
LAYOUTS = ("single", "horizontal", "vertical")
_OBJECT_HEADS = {"size": tuple(SIZES), "colour": tuple(COLOURS), "shape": SHAPES}
HEADS: dict[str, tuple[str, ...]] = {  # attribute -> its values
    "background": BACKGROUNDS,
    "layout": LAYOUTS,
    **{f"{name}_{slot}": values for slot in (0, 1) for name, values in _OBJECT_HEADS.items()},
}
SPLITS = ("train", "seen", "unseen")
VOCABULARY = ("a", *SIZES, *COLOURS, *SHAPES, "left", "right", "of", "above", "below", "on", *BACKGROUNDS)
_OBJECT = f"a ({'|'.join(SIZES)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
# Regular expression of all captions.
CAPTIONS = f"{_OBJECT}( ({'|'.join(RELATIONS)}) {_OBJECT})? on ({'|'.join(BACKGROUNDS)})"
RENDER_CHUNK = 64  # images rendered at once; larger chunks do not fit into the CPU's cache and are slower
_SINGLE_SHARE = 0.4
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_FIRST_IS_BEFORE = ("left of", "above")  # relations in which the caption's first object is the left or upper one
_OBJECT_PARAMETERS = 6  # five are used; another number would change all images
_SCENE_STREAM, _RENDER_STREAM = 0, 1

SceneObject = tuple[str, str, str]  # size, colour, shape


@dataclass(frozen=True)
class Scene:
    """Content of an image of the shapes dataset, as its caption states it."""

    background: str  # one of BACKGROUNDS
    objects: tuple[SceneObject, ...]  # one or two, in the order of the caption
    relation: str | None = None  # of the first object to the second, one of RELATIONS; None for a single object

    @property
    def layout(self) -> str:
        """One of LAYOUTS."""
        if self.relation is None:
            return "single"
        return "horizontal" if self.relation in ("left of", "right of") else "vertical"

    def canonical(self) -> Scene:
        """Return the scene with object 0 first: "A right of B" becomes "B left of A"."""
        if self.relation is None or self.relation in _FIRST_IS_BEFORE:
            return self
        return Scene(self.background, self.objects[::-1], _OPPOSITE[self.relation])


def caption(scene: Scene) -> str:
    """Write the caption of a scene: "a large red circle left of a small blue square on grass"."""
    names = ["a " + " ".join(item) for item in scene.objects]
    return f" {scene.relation} ".join(names) + f" on {scene.background}"


def parse_caption(text: str) -> Scene:
    """Parse a caption into a scene. The objects keep the order of the caption.

    Case and full stops at the end are ignored. Other texts raise a ValueError.
    """
    words = text.lower().rstrip(" .").split()
    for word in words:
        if word not in VOCABULARY:
            raise ValueError(f"unknown word {word!r} in caption {text!r}; known words: {', '.join(VOCABULARY)}")
    found = re.fullmatch(CAPTIONS, " ".join(words))
    if found is None:
        raise ValueError(f"caption {text!r} is not of the form {CAPTIONS}")
    # The groups before are the first object and all of the second part.
    relation, *_, background = found.groups()[4:]
    return Scene(background, tuple(re.findall(_OBJECT, found[0])), relation)


def attributes_of(text: str) -> dict[str, str] | None:
    """Return the attributes that a caption names, with keys of HEADS, or None for a text that is no caption.

    A caption of a single object names no attribute of object 1.
    """
    try:
        scene = parse_caption(text).canonical()
    except ValueError:
        return None
    attributes = {"background": scene.background, "layout": scene.layout}
    for slot, item in enumerate(scene.objects):
        attributes |= {f"{name}_{slot}": value for name, value in zip(_OBJECT_HEADS, item, strict=True)}
    return attributes


def _generator(seed: int, stream: int, index: int) -> np.random.Generator:
    """Return the generator of one image: stream _SCENE_STREAM for its content, _RENDER_STREAM for its pixels."""
    # A counter-based generator, so that any image can be computed without those before it. The mask makes negative
    # seeds valid keys. An index is below 2**56.
    return np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), (stream << 56) + index]))


def sample_scene(seed: int, index: int, split: str) -> Scene:
    """Sample the scene with number `index`, in [0, 2**48), of a split.

    Every scene of split "unseen" has an object whose colour and shape are in HELD_OUT. No scene of another split has
    such an object.
    """
    # The bits from 2**50 on hold the split, so no two splits have the same scenes.
    generator = _generator(seed, _SCENE_STREAM, (SPLITS.index(split) << 50) + index)
    sizes, colours = tuple(SIZES), tuple(COLOURS)
    # Rejection sampling from all scenes, so admitted scenes keep their relative frequencies.
    while True:
        draw = generator.random(10)  # nine are used; another number would change scenes
        background = BACKGROUNDS[int(draw[0] * len(BACKGROUNDS))]
        objects = [
            (sizes[int(s * len(sizes))], colours[int(c * len(colours))], SHAPES[int(f * len(SHAPES))])
            for s, c, f in (draw[1:4], draw[4:7])
        ]
        relation = RELATIONS[int(draw[7] * len(RELATIONS))]
        if draw[8] < _SINGLE_SHARE:
            objects, relation = objects[:1], None
        kinds = [item[1:] for item in objects]
        is_unseen = any(kind in HELD_OUT for kind in kinds)
        # Two objects of a scene differ in colour or shape, not only in size.
        if is_unseen == (split == "unseen") and len(set(kinds)) == len(kinds):
            return Scene(background, tuple(objects), relation)


def render(scenes: Sequence[Scene], seed: int, indices: Sequence[int], image_size: int = 48) -> Tensor:
    """Render scenes as images whose pixels have 256 levels, float32 (images, 3, image_size, image_size) in [-1, 1].

    Image i depends only on scenes[i], seed, indices[i] and image_size, not on the other images.
    """
    images = torch.empty(len(scenes), 3, image_size, image_size)
    for start in range(0, len(scenes), RENDER_CHUNK):
        rows = slice(start, start + RENDER_CHUNK)
        images[rows] = _render_chunk(scenes[rows], seed, indices[rows], image_size)
    return images


def _render_chunk(scenes: Sequence[Scene], seed: int, indices: Sequence[int], size: int) -> Tensor:
    noise, placement = _draw_noise(seed, indices, size)
    images = paint_backgrounds([scene.background for scene in scenes], noise)
    # "A right of B" and "B left of A" are the same image.
    ordered = [scene.canonical() for scene in scenes]
    # Object 1 is drawn over the shadow of object 0.
    for slot in (0, 1):
        rows = [row for row, scene in enumerate(ordered) if len(scene.objects) > slot]
        if rows:
            objects = [ordered[row].objects[slot] for row in rows]
            centres = torch.tensor([_centre(ordered[row].layout, slot) for row in rows])
            index = torch.tensor(rows)
            images[index] = _draw_objects(images[index], objects, centres, placement[index, slot])
    # Round to 256 levels, as in an image file. This hides nearly all last-bit differences between machines.
    return images.clamp_(0.0, 1.0).mul_(255.0).round_().mul_(2.0 / 255.0).sub_(1.0)


def _draw_noise(seed: int, indices: Sequence[int], size: int) -> tuple[TextureNoise, Tensor]:
    """Return the numbers of the textures, and those that place the objects, (images, 2, _OBJECT_PARAMETERS)."""
    counts = [2 * _OBJECT_PARAMETERS, NUM_PARAMETERS, NUM_COARSE * COARSE_SIZE**2, 2 * size * size]
    # One array that generators fill in place, row by row, without a copy per image.
    values = np.empty((len(indices), sum(counts)), dtype=np.float32)
    for row, index in enumerate(indices):
        _generator(seed, _RENDER_STREAM, int(index)).random(dtype=np.float32, out=values[row])
    placement, parameters, coarse, fine = torch.from_numpy(values).split(counts, dim=1)
    noise = TextureNoise(
        fine.reshape(-1, 2, size, size), coarse.reshape(-1, NUM_COARSE, COARSE_SIZE, COARSE_SIZE), parameters
    )
    return noise, placement.reshape(-1, 2, _OBJECT_PARAMETERS)


def _centre(layout: str, slot: int) -> tuple[float, float, float, float]:
    """Return the mean position x, y of an object, and its largest random offsets from there along x and y."""
    along = (12.0, 36.0)[slot]
    # Offsets along the line of the objects are small, so that large objects hardly overlap.
    if layout == "horizontal":
        return along, 24.0, 0.9, 5.0
    if layout == "vertical":
        return 24.0, along, 5.0, 0.9
    return 24.0, 24.0, 6.0, 6.0


def _draw_objects(images: Tensor, objects: Sequence[SceneObject], centres: Tensor, placement: Tensor) -> Tensor:
    """Draw one object with its shadow into each image, (images, 3, size, size) in [0, 1], and return new images."""
    size = images.shape[-1]
    scale = REFERENCE_SIZE / size
    # Columns: x, y, radius, rotation, brightness.
    jitter = 2.0 * placement - 1.0
    position = centres[:, :2] + centres[:, 2:] * jitter[:, :2]
    radius = torch.tensor([SIZES[item[0]] for item in objects]) * (1.0 + 0.04 * jitter[:, 2])
    # Centres of the pixels.
    line = (torch.arange(size, dtype=torch.float32) + 0.5) * scale
    x = line[None, None, :] - position[:, 0, None, None]
    y = line[None, :, None] - position[:, 1, None, None]
    distance = signed_distance([item[2] for item in objects], x, y, radius, 0.22 * jitter[:, 3])
    shadow = torch.zeros_like(distance)
    # The shadow is the blurred shape, moved to the bottom right, since light comes from the top left.
    offset = max(1, round(2.0 / scale))
    shadow[:, offset:, offset:] = 0.5 * torch.sigmoid(-0.9 * distance[:, :-offset, :-offset])
    colour = torch.tensor([COLOURS[item[1]] for item in objects]) * (1.0 + 0.05 * jitter[:, 4:5])
    surface = _shade(colour, distance, x, y, radius)
    # Share of a pixel inside the outline: anti-aliasing over one pixel.
    alpha = (0.5 - distance / scale).clamp(0.0, 1.0)[:, None]
    images = images * (1.0 - shadow)[:, None]
    return images + (surface - images) * alpha


def _shade(colour: Tensor, distance: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Return the colours (images, 3, size, size) of objects lit from the top left, with a highlight and a dark rim."""
    r = radius[:, None, None]
    # Pixels outside of the objects get values, too, which the caller masks.
    light = 0.98 - 0.13 * (x + y) / r
    # From 0 at 0.154 r inside the outline to 1 at 0.044 r.
    rim = (distance / (0.11 * r) + 1.4).clamp(0.0, 1.0)
    # A spot of radius 0.34 r, 1 in its middle.
    highlight = (1.0 - ((x + 0.32 * r) ** 2 + (y + 0.36 * r) ** 2) / (0.34 * r) ** 2).clamp(0.0, 1.0)
    surface = colour[:, :, None, None] * (light * (1.0 - 0.55 * rim))[:, None]
    return surface + (0.35 * highlight)[:, None] * (1.0 - surface)


def signed_distance(shapes: Sequence[str], x: Tensor, y: Tensor, radius: Tensor, angle: Tensor) -> Tensor:
    """Return the distance of each pixel to the outline of its image's shape, negative inside, (images, size, size).

    Args:
        x: horizontal offset of each pixel from the centre of the shape, (images, 1, size).
        y: vertical offset, (images, size, 1).
        angle: rotation of the shape in radians, (images,).
    """
    distance = torch.empty(len(shapes), y.shape[1], x.shape[2])
    for shape in sorted(set(shapes)):
        rows = torch.tensor([row for row, other in enumerate(shapes) if other == shape])
        cos, sin = angle[rows].cos()[:, None, None], angle[rows].sin()[:, None, None]
        turned_x = cos * x[rows] + sin * y[rows]
        turned_y = cos * y[rows] - sin * x[rows]
        distance[rows] = DISTANCES[shape](turned_x, turned_y, radius[rows, None, None])
    return distance
