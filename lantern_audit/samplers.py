"""Samplers to audit: methods, also with custom parts, transformers' assisted generation, and functions of users.

A *sampler* maps a world, prompts, int64 (batch,), and seeds, int64 (batch,), to tokens, int64 (batch, num_tokens). The
sequences of a world have only a few tokens, for which default trees are too deep. Methods with such a tree get a small
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from lantern.acceptance.base import Acceptance
from lantern.decoding import make_decoder
from lantern.drafters.base import Drafter
from lantern.extensions import import_object
from lantern.methods import MethodSpec, make_method
from lantern.registry import PRESETS, acceptance_of, drafts_for, drafts_of, preset_of
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import Choices, DynamicTreeOptions
from lantern_audit.assisted import assisted_generation
from lantern_audit.table_models import make_models
from lantern_audit.world import World

Sampler = Callable[[World, torch.Tensor, torch.Tensor], torch.Tensor]
ASSISTED = "transformers"  # name of transformers' assisted generation
SMALL_TREE: Choices = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
SMALL_DYNAMIC_TREE = DynamicTreeOptions(num_nodes=7, depth=2, top_k=3)
_WANTED = "a function or a class as module:name, of a file in this folder or an installed package"
# Tree of a custom class if the caller gives none, by the first kind of tree that its drafts support.
_TREES = {"static": "static", "dynamic": "dynamic", "chains": "chain3x2", "joint": "chain3+chain3"}


@dataclass(frozen=True)
class MethodSampler:
    """A sampler that decodes with a method and the models of a `World`, without filters and at temperature 1."""

    spec: MethodSpec

    def __call__(self, world: World, prompts: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Sample one sequence per prompt. Its noise depends on its own seed and on the prompt, which is its id."""
        decoder = make_decoder(make_models(world, self.spec), self.spec, SamplingConfig())
        noise = [
            decoder.make_noise(seed, str(prompt)) for seed, prompt in zip(seeds.tolist(), prompts.tolist(), strict=True)
        ]
        # A prompt is one id, and no position is padding.
        return decoder.generate(prompts[:, None], torch.ones_like(prompts, dtype=torch.bool)[:, None], noise).codes


def make_sampler(name: str, parts: Mapping[str, object]) -> Sampler:
    """Make the sampler that a name describes.

    The name is a preset, "transformers" for its assisted generation, "module:function" of a sampler, or "module:Class"
    of an acceptance or a drafter. `parts` replace those of the preset. With a class, they are the other parts of its
    method.

    Raises:
        ValueError: the name is unknown, a part does not fit, or parts are given to a function.
    """
    if "name" in parts:
        raise ValueError(f"sampler {name} takes no name, got {parts['name']!r}; leave it out")
    if name in PRESETS:
        # The preset's tree is read, but only the caller's parts are passed: `make_method` adds those of the preset.
        return MethodSampler(make_method(name, **_with_small_tree({**preset_of(name), **parts}, parts)))
    if name != ASSISTED and ":" not in name:
        raise ValueError(
            f"a sampler must be one of {', '.join(PRESETS)}, {ASSISTED}, module:function or module:Class, got {name!r}"
        )
    found = assisted_generation if name == ASSISTED else import_object(name, _WANTED)
    if isinstance(found, type):
        return MethodSampler(_custom_method(name, found, parts))
    if not callable(found):
        raise ValueError(f"{name} must name {_WANTED}, got {type(found).__name__}")
    if parts:
        raise ValueError(f"a function takes no parts of a method, got {', '.join(parts)} for {name}; leave them out")
    return cast("Sampler", found)


def _custom_method(path: str, kind: type, parts: Mapping[str, object]) -> MethodSpec:
    known: dict[str, Any]
    if issubclass(kind, Acceptance):
        row = acceptance_of(path)
        known = {"acceptance": path, "drafts": drafts_for(row.needs)[0], **parts}
        tree = {"tree": "chain3"} if "chain" in row.needs else _tree_of(known["drafts"])
        known = {**tree, **known}
    elif issubclass(kind, Drafter):
        known = {"drafts": path, **_tree_of(path), **parts}
    else:
        raise ValueError(f"{path} must be a function, or a class derived from Acceptance or Drafter, got another class")
    return MethodSpec.of("custom", **_with_small_tree(known, known))  # "custom" is no preset that adds parts


def _tree_of(drafts: object) -> dict[str, str]:
    """Return the tree of drafts for which the caller names none, or nothing if they fill no tree."""
    trees = drafts_of(drafts).trees
    return {"tree": _TREES[trees[0]]} if trees else {}


def _with_small_tree(known: Mapping[str, object], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the given parts, with a small tree shape if the tree of all parts is "static" or "dynamic"."""
    shapes = {"static": SMALL_TREE, "dynamic": SMALL_DYNAMIC_TREE}
    parts = dict(given)
    # Only these two names stand for default trees. Others, such as "chain3", state the shape.
    tree = known.get("tree")
    if isinstance(tree, str) and tree in shapes:
        parts.setdefault("tree_shape", shapes[tree])
    return parts
