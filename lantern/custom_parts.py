"""Watch a user's own drafter or acceptance: every error names its class, what was called, and the decoding method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lantern.draft_tree import DraftTree
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Proposal

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
    """What a user's own class raised or returned."""


def named(call: Callable[..., Any], path: str, spec: MethodSpec) -> Callable[..., Any]:
    """Wrap a function of the class `path` so that its errors become a `CustomPartError`."""

    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except (CustomPartError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            where = f"{getattr(call, '__name__', 'a function')} of {path} in method {spec.method_id or spec.name}"
            raise CustomPartError(f"{where} failed: {type(error).__name__}: {error}; correct that class") from error

    return run


def watch_drafter(drafter: Any, spec: MethodSpec, sampling: SamplingConfig, vocab_size: int) -> None:
    """Check every proposal of a user's drafter, in place.

    Raises:
        CustomPartError: the drafter lacks an attribute, or they contradict each other. Its functions raise it as well.
    """
    for name in ("tree", "max_depth"):
        _require(hasattr(drafter, name), drafter, "make", spec, f"a drafter with the attribute {name}", "none")
    tree = drafter.tree
    if isinstance(tree, DraftTree):
        depth = f"a drafter whose max_depth is its tree's, {tree.max_depth}"
        _require(drafter.max_depth == tree.max_depth, drafter, "make", spec, depth, drafter.max_depth)
    is_sampled = spec.drafts_row.is_sampled and not sampling.is_greedy
    propose = drafter.propose

    def checked(state: Any, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        proposal = propose(state, root, lengths)
        _check_proposal(proposal, drafter, spec, root, is_sampled, vocab_size)
        return proposal

    checked.__name__ = "propose"
    vars(drafter)["propose"] = checked
    for name in ("allocate", "fill", "propose", "observe"):
        vars(drafter)[name] = named(getattr(drafter, name), spec.drafts, spec)


def watch_acceptance(acceptance: Any, spec: MethodSpec) -> None:
    """Check what a user's acceptance returns, in place: its functions raise a `CustomPartError`."""
    relaxed_prob, admits = acceptance.relaxed_prob, getattr(acceptance, "admits", None)

    def checked_relaxed_prob(probs: Any, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        found = relaxed_prob(probs, draft_probs, tokens)
        _check_tensor(found, tokens.shape, acceptance, "relaxed_prob", spec)
        if _is_readable(found):
            is_wrong = ~(found.isfinite() & (found >= 0))
            if draft_probs is not None:  # nothing is left to draw at some nodes
                is_wrong = is_wrong & draft_probs.isfinite().all(-1, keepdim=True)
            _require(not is_wrong.any(), acceptance, "relaxed_prob", spec, "finite numbers >= 0", found[is_wrong])
        return found

    def checked_admits(mass: torch.Tensor, token_probs: torch.Tensor, spent: Any) -> torch.Tensor:
        found = admits(mass, token_probs, spent)
        _check_tensor(found, mass.shape, acceptance, "admits", spec, torch.bool)
        if _is_readable(found):
            is_prefix = not (found[..., 1:-1] & ~found[..., :-2]).any()  # the last is the draft, member or not
            _require(is_prefix, acceptance, "admits", spec, "a prefix: False ever after the first False", "a gap")
        return found

    checked_relaxed_prob.__name__, checked_admits.__name__ = "relaxed_prob", "admits"
    vars(acceptance)["relaxed_prob"] = checked_relaxed_prob
    if admits is not None:
        vars(acceptance)["admits"] = checked_admits
    for name in _ACCEPTANCE_FUNCTIONS:
        if hasattr(acceptance, name):
            vars(acceptance)[name] = named(getattr(acceptance, name), spec.acceptance, spec)


def _check_proposal(
    proposal: Any, drafter: Any, spec: MethodSpec, root: torch.Tensor, is_sampled: bool, vocab_size: int
) -> None:
    def require(holds: Any, wanted: str, found: Any) -> None:
        _require(holds, drafter, "propose", spec, wanted, found)

    require(isinstance(proposal, Proposal), "a Proposal", type(proposal).__name__)
    tree, tokens, drawn_from = proposal.tree, proposal.tokens, proposal.draft_probs
    if isinstance(drafter.tree, DraftTree):
        same = tree.num_nodes == drafter.tree.num_nodes and tree.max_depth == drafter.tree.max_depth
        require(same, f"its own tree of {drafter.tree.num_nodes} nodes", f"one of {tree.num_nodes}")
    _check_tensor(tokens, (len(root), tree.num_nodes), drafter, "propose", spec, torch.int64, "tokens, ")
    if is_sampled:
        require(drawn_from is not None, "draft_probs, since it declares is_sampled", None)
        shape = (len(root), tree.children.shape[1], vocab_size)
        _check_tensor(drawn_from, shape, drafter, "propose", spec, what="draft_probs, ")
    if not _is_readable(tokens):
        return
    require(torch.equal(tokens[:, :1], root), f"the root {root[:, 0].tolist()} at node 0", tokens[:, 0].tolist())
    is_token = (tokens >= -1) & (tokens < vocab_size)
    require(is_token.all(), f"tokens in [0, {vocab_size}), or -1 for none", tokens[~is_token])
    if is_sampled:
        is_law = drawn_from.isfinite().all() and (drawn_from >= 0).all()
        require(is_law, "draft_probs that are finite and >= 0", "others")


def _check_tensor(
    found: Any, shape: Any, part: Any, call: str, spec: MethodSpec, dtype: torch.dtype | None = None, what: str = ""
) -> None:
    """Check shape and dtype; None is any floating dtype."""
    kind = "a tensor of a floating dtype" if dtype is None else f"a tensor of {dtype}"
    is_tensor = isinstance(found, torch.Tensor)
    is_right = is_tensor and found.shape == tuple(shape)
    is_right = is_right and (found.is_floating_point() if dtype is None else found.dtype == dtype)
    got = f"{found.dtype} of shape {tuple(found.shape)}" if is_tensor else type(found).__name__
    _require(is_right, part, call, spec, f"{what}{kind} of shape {tuple(shape)}", got)


def _require(holds: Any, part: Any, call: str, spec: MethodSpec, wanted: str, found: Any) -> None:
    if not holds:
        path = f"{type(part).__module__}:{type(part).__name__}"
        got = found.flatten()[:4].tolist() if isinstance(found, torch.Tensor) else found
        raise CustomPartError(
            f"{call} of {path} in method {spec.method_id or spec.name} must return {wanted}, got {got}; correct that "
            "class"
        )


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether values may be read: not while a CUDA graph is captured."""
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
