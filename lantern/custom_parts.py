"""Checks of a user's drafters and acceptances.

Functions of a watched object raise a `CustomPartError` if they fail, or if their first result is wrong. Later results
are not checked. Every message states the class, the function that was called, and the decoding method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from lantern.draft_tree import DraftTree
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Proposal

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_ACCEPTANCE_FUNCTIONS = (
    "relaxed_prob",
    "relaxed_prob_of_all",
    "codes_of",
    "merge",
    "at",
    "of_next_sibling",
    "make_verifier",
    "admits",
)


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


def watch_drafter(drafter: Any, path: str, spec: MethodSpec, sampling: SamplingConfig, vocab_size: int) -> None:
    """Make a user's drafter check its first proposal, in place, and name its functions in errors.

    Args:
        path: class of the drafter, "module:Class".
        vocab_size: number of tokens in the target's vocabulary.

    Raises:
        CustomPartError: the drafter lacks the attribute `tree` or `max_depth`, or `max_depth` is not the depth of the
            tree.
    """
    for name in ("tree", "max_depth"):
        _require(hasattr(drafter, name), drafter, "make", spec, f"a drafter with the attribute {name}", "none")
    tree = drafter.tree
    if isinstance(tree, DraftTree):  # for a dynamic tree, the options from which each step builds one
        depth = f"a drafter whose max_depth is its tree's, {tree.max_depth}"
        _require(drafter.max_depth == tree.max_depth, drafter, "make", spec, depth, drafter.max_depth)
    is_sampled = spec.drafts_row.is_sampled and not sampling.is_greedy

    def check(proposal: object, state: object, root: torch.Tensor, lengths: torch.Tensor) -> None:
        _check_proposal(proposal, drafter, spec, root, is_sampled, vocab_size)

    for name in ("allocate", "fill", "observe"):
        _watch(drafter, name, path, spec)
    _watch(drafter, "propose", path, spec, check)


def watch_acceptance(acceptance: Any, spec: MethodSpec) -> None:
    """Make a user's acceptance check its first results, in place, and name its functions in errors."""

    def check_probs(found: Any, probs: object, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> None:
        _check_tensor(found, tokens.shape, acceptance, "relaxed_prob", spec)
        is_wrong = ~(found.isfinite() & (found >= 0))
        if draft_probs is not None:  # nan of a broken draft model, which `DecodingState.check_finite` names
            is_wrong = is_wrong & draft_probs.isfinite().all(-1, keepdim=True)
        _require(not is_wrong.any(), acceptance, "relaxed_prob", spec, "finite numbers >= 0", found[is_wrong])

    def check_prefix(found: Any, mass: torch.Tensor, *others: object) -> None:
        _check_tensor(found, mass.shape, acceptance, "admits", spec, torch.bool)
        # [True, True, False] admits the two nearest codes of a draft to its relaxed set, but not the three nearest.
        is_prefix = not (found[..., 1:-1] & ~found[..., :-2]).any()  # `RelaxedSets` ignores the last entry
        _require(is_prefix, acceptance, "admits", spec, "a prefix: only False after the first False", "a gap")

    checks = {"relaxed_prob": check_probs, "admits": check_prefix}
    for name in _ACCEPTANCE_FUNCTIONS:
        if hasattr(acceptance, name):
            _watch(acceptance, name, spec.acceptance, spec, checks.get(name))


def watch_verifier(verifier: Any, spec: MethodSpec) -> None:
    """Make the verifier of a user's acceptance name `verify` in errors, in place."""
    _watch(verifier, "verify", spec.acceptance, spec)


def _watch(part: Any, name: str, path: str, spec: MethodSpec, check: Callable[..., None] | None = None) -> None:
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


def _check_proposal(
    proposal: object, drafter: Any, spec: MethodSpec, root: torch.Tensor, is_sampled: bool, vocab_size: int
) -> None:
    def require(holds: bool, wanted: str, found: object) -> None:
        _require(holds, drafter, "propose", spec, wanted, found)

    if not isinstance(proposal, Proposal):
        raise _error(drafter, "propose", spec, "a Proposal", type(proposal).__name__)
    tree = proposal.tree
    tokens = proposal.tokens
    # The decoder has set the sizes of its buffers by the drafter's own tree.
    if isinstance(drafter.tree, DraftTree):
        same = tree.num_nodes == drafter.tree.num_nodes and tree.max_depth == drafter.tree.max_depth
        require(same, f"its own tree of {drafter.tree.num_nodes} nodes", f"one of {tree.num_nodes}")
    _check_tensor(tokens, (len(root), tree.num_nodes), drafter, "propose", spec, torch.int64, "tokens, ")
    if is_sampled:
        require(proposal.draft_probs is not None, "draft_probs, since it declares is_sampled", None)
        shape = (len(root), tree.children.shape[1], vocab_size)
        _check_tensor(proposal.draft_probs, shape, drafter, "propose", spec, what="draft_probs, ")
    require(torch.equal(tokens[:, :1], root), f"the root {root[:, 0].tolist()} at node 0", tokens[:, 0].tolist())
    is_token = (tokens >= -1) & (tokens < vocab_size)
    require(bool(is_token.all()), f"tokens in [0, {vocab_size}), or -1 for none", tokens[~is_token])
    if is_sampled and proposal.draft_probs is not None:
        is_right = proposal.draft_probs.isfinite() & (proposal.draft_probs >= 0)
        require(bool(is_right.all()), "draft_probs that are finite and >= 0", "others")


def _check_tensor(
    found: object,
    shape: Sequence[int],
    part: object,
    call: str,
    spec: MethodSpec,
    dtype: torch.dtype | None = None,
    what: str = "",
) -> None:
    """Raise an error unless a result is a tensor of this shape and dtype (None: any floating dtype)."""
    # `what` names one of several tensors that the function returns, with a comma.
    kind = "a tensor of a floating dtype" if dtype is None else f"a tensor of {dtype}"
    wanted = f"{what}{kind} of shape {tuple(shape)}"
    if not isinstance(found, torch.Tensor):
        raise _error(part, call, spec, wanted, type(found).__name__)
    has_dtype = found.is_floating_point() if dtype is None else found.dtype == dtype
    is_right = has_dtype and found.shape == tuple(shape)
    _require(is_right, part, call, spec, wanted, f"{found.dtype} of shape {tuple(found.shape)}")


def _require(holds: bool, part: object, call: str, spec: MethodSpec, wanted: str, found: object) -> None:
    if not holds:
        raise _error(part, call, spec, wanted, found)


def _error(part: object, call: str, spec: MethodSpec, wanted: str, found: object) -> CustomPartError:
    path = f"{type(part).__module__}:{type(part).__name__}"
    got = found.flatten()[:4].tolist() if isinstance(found, torch.Tensor) else found
    return CustomPartError(
        f"{call} of {path} in method {spec.label} must return {wanted}, got {got}; correct that class"
    )
