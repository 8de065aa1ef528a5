"""Checks of a user's drafters and acceptances.

Functions of a watched object raise a `CustomPartError` if they fail, or if their first result is wrong. Later results
are not checked. Every message states the class, the function that was called, and the decoding method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from lantern.draft_tree import DraftTree
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Proposal

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class CustomPartError(ValueError):
    """An error in a user's class: an exception that it raised, or a wrong value that it returned."""


def named(call: Callable[Arguments, Result], path: str, spec: MethodSpec) -> Callable[Arguments, Result]:
    """Wrap a function of a user's class, "module:Class". Errors for lack of memory stay as they are."""

    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return call(*arguments, **options)
        # A batch that is too large is no error of the class.
        except (CustomPartError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            where = f"{getattr(call, '__name__', 'a function')} of {path} in method {spec.label}"
            raise CustomPartError(f"{where} failed: {type(error).__name__}: {error}; correct that class") from error

    return run


# Objects of a user's class have the type Any below, since they may lack attributes that they should have.


def watch_drafter(drafter: Any, spec: MethodSpec, sampling: SamplingConfig, vocab_size: int) -> None:
    """Make a user's drafter check its first proposal, in place, and name its functions in errors.

    Raises:
        CustomPartError: the drafter lacks the attribute `tree` or `max_depth`, or `max_depth` is not the depth of the
            tree.
    """
    make = _Function(drafter, "make", spec)
    for name in ("tree", "max_depth"):
        make.require(hasattr(drafter, name), f"a drafter with the attribute {name}", "none")
    tree = drafter.tree
    if isinstance(tree, DraftTree):  # for a dynamic tree, the options from which each step builds one
        depth = f"a drafter whose max_depth is its tree's, {tree.max_depth}"
        make.require(drafter.max_depth == tree.max_depth, depth, drafter.max_depth)
    is_sampled = spec.drafts_row.is_sampled and not sampling.is_greedy

    def check(proposal: object, state: object, root: torch.Tensor, lengths: torch.Tensor) -> None:
        _check_proposal(_Function(drafter, "propose", spec), proposal, root, is_sampled, vocab_size)

    for name in ("allocate", "fill", "observe"):
        watch(drafter, name, spec.drafter_path, spec)
    watch(drafter, "propose", spec.drafter_path, spec, check)


def watch_acceptance(acceptance: Any, spec: MethodSpec) -> None:
    """Make a user's acceptance check its first results, in place, and name its functions in errors."""

    def check_probs(found: Any, probs: object, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> None:
        function = _Function(acceptance, "relaxed_prob", spec)
        function.require_tensor(found, tokens.shape)
        is_wrong = ~(found.isfinite() & (found >= 0))
        if draft_probs is not None:  # nan of a broken draft model, which `DecodingState.check_finite` names
            is_wrong = is_wrong & draft_probs.isfinite().all(-1, keepdim=True)
        function.require(not is_wrong.any(), "finite numbers >= 0", found[is_wrong])

    def check_prefix(found: Any, mass: torch.Tensor, *others: object) -> None:
        function = _Function(acceptance, "admits", spec)
        function.require_tensor(found, mass.shape, torch.bool)
        # [True, True, False] admits the two nearest codes of a draft to its relaxed set, but not the three nearest.
        is_prefix = not (found[..., 1:-1] & ~found[..., :-2]).any()  # `RelaxedSets` ignores the last entry
        function.require(is_prefix, "a prefix: only False after the first False", "a gap")

    checks = {"relaxed_prob": check_probs, "admits": check_prefix}
    for name, _ in inspect.getmembers(type(acceptance), inspect.isfunction):
        if not name.startswith("_"):
            watch(acceptance, name, spec.acceptance, spec, checks.get(name))


def watch(part: Any, name: str, path: str, spec: MethodSpec, check: Callable[..., None] | None = None) -> None:
    """Make an object name its function in errors, and check the first result, in place."""
    # An attribute of the object hides the method of its class, which other objects keep.
    call = vars(part)[name] = named(getattr(part, name), path, spec)
    if check is None:
        return

    # Also in graph mode the host can read what it checks: an eager step comes before the capture.
    def first(*arguments: Any) -> Any:
        found = call(*arguments)
        check(found, *arguments)
        vars(part)[name] = call
        return found

    vars(part)[name] = first


@dataclass(frozen=True)
class _Function:
    """A function of a user's object, whose results are checked."""

    part: Any
    name: str
    spec: MethodSpec

    def require(self, holds: bool, wanted: str, found: object) -> None:
        if holds:
            return
        path = f"{type(self.part).__module__}:{type(self.part).__name__}"
        got = found.flatten()[:4].tolist() if isinstance(found, torch.Tensor) else found
        raise CustomPartError(
            f"{self.name} of {path} in method {self.spec.label} must return {wanted}, got {got}; correct that class"
        )

    def require_tensor(
        self, found: Any, shape: Sequence[int], dtype: torch.dtype | None = None, what: str = ""
    ) -> None:
        """Raise an error unless a result is a tensor of this shape and dtype (None: any floating dtype)."""
        # `what` names one of several tensors that the function returns, with a comma.
        kind = "a tensor of a floating dtype" if dtype is None else f"a tensor of {dtype}"
        wanted = f"{what}{kind} of shape {tuple(shape)}"
        self.require(isinstance(found, torch.Tensor), wanted, type(found).__name__)
        has_dtype = found.is_floating_point() if dtype is None else found.dtype == dtype
        is_right = has_dtype and found.shape == tuple(shape)
        self.require(is_right, wanted, f"{found.dtype} of shape {tuple(found.shape)}")


def _check_proposal(propose: _Function, proposal: Any, root: torch.Tensor, is_sampled: bool, vocab_size: int) -> None:
    propose.require(isinstance(proposal, Proposal), "a Proposal", type(proposal).__name__)
    tree = proposal.tree
    tokens = proposal.tokens
    draft_probs = proposal.draft_probs
    # The decoder has set the sizes of its buffers by the drafter's own tree.
    own = propose.part.tree
    if isinstance(own, DraftTree):
        same = tree.num_nodes == own.num_nodes and tree.max_depth == own.max_depth
        propose.require(same, f"its own tree of {own.num_nodes} nodes", f"one of {tree.num_nodes}")
    propose.require_tensor(tokens, (len(root), tree.num_nodes), torch.int64, "tokens, ")
    propose.require(
        torch.equal(tokens[:, :1], root), f"the root {root[:, 0].tolist()} at node 0", tokens[:, 0].tolist()
    )
    is_token = (tokens >= -1) & (tokens < vocab_size)
    propose.require(bool(is_token.all()), f"tokens in [0, {vocab_size}), or -1 for none", tokens[~is_token])
    if is_sampled:
        propose.require(draft_probs is not None, "draft_probs, since it declares is_sampled", None)
        propose.require_tensor(draft_probs, (len(root), tree.children.shape[1], vocab_size), what="draft_probs, ")
        is_right = draft_probs.isfinite() & (draft_probs >= 0)
        propose.require(bool(is_right.all()), "draft_probs that are finite and >= 0", "others")
