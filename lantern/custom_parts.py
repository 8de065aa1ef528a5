"""Checks of a user's drafters, which propose drafts, and acceptances, which determine how drafts are accepted.

Every error message states the class, the function that was called, and the decoding method.
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
    """Wrap a function of a user's class, so that its exceptions become a `CustomPartError`.

    Args:
        call: the function.
        path: the class, "module:Class", for the error message.
        spec: the decoding method, for the error message.

    Returns:
        The wrapped function. An out-of-memory error is raised as it is.
    """

    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return call(*arguments, **options)
        except (CustomPartError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            where = f"{getattr(call, '__name__', 'a function')} of {path} in method {spec.label}"
            raise CustomPartError(f"{where} failed: {type(error).__name__}: {error}; correct that class") from error

    return run


# Objects of a user's class have the type Any below, since they may lack attributes that they should have.


def watch_drafter(drafter: Any, path: str, spec: MethodSpec, sampling: SamplingConfig, vocab_size: int) -> None:
    """Make a user's drafter check each of its proposals. The drafter is changed in place.

    From then on, its functions raise a `CustomPartError` if they fail or return a wrong result.

    Args:
        drafter: the drafter.
        path: class of the drafter, "module:Class".
        spec: the decoding method.
        sampling: temperature and filters.
        vocab_size: number of tokens in the target's vocabulary.

    Raises:
        CustomPartError: the drafter lacks the attribute `tree` or `max_depth`, or `max_depth` is not the depth of the
            tree.
    """
    for name in ("tree", "max_depth"):
        _require(hasattr(drafter, name), drafter, "make", spec, f"a drafter with the attribute {name}", "none")
    tree = drafter.tree
    if isinstance(tree, DraftTree):
        depth = f"a drafter whose max_depth is its tree's, {tree.max_depth}"
        _require(drafter.max_depth == tree.max_depth, drafter, "make", spec, depth, drafter.max_depth)
    is_sampled = spec.drafts_row.is_sampled and not sampling.is_greedy
    propose = drafter.propose

    def checked(state: object, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        proposal = propose(state, root, lengths)
        _check_proposal(proposal, drafter, spec, root, is_sampled, vocab_size)
        return proposal

    checked.__name__ = "propose"
    vars(drafter)["propose"] = checked
    for name in ("allocate", "fill", "propose", "observe"):
        vars(drafter)[name] = named(getattr(drafter, name), path, spec)


def watch_acceptance(acceptance: Any, spec: MethodSpec) -> None:
    """Make a user's acceptance check its results. The acceptance is changed in place.

    From then on, its functions raise a `CustomPartError` if they fail or return a wrong result.

    Args:
        acceptance: the acceptance, an object that computes the probabilities with which drafts are verified.
        spec: the decoding method.
    """
    relaxed_prob = acceptance.relaxed_prob

    def checked(probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        found = relaxed_prob(probs, draft_probs, tokens)
        _check_tensor(found, tokens.shape, acceptance, "relaxed_prob", spec)
        if _is_readable(found):
            is_wrong = ~(found.isfinite() & (found >= 0))
            if draft_probs is not None:  # nodes without a remaining draft have nan
                is_wrong = is_wrong & draft_probs.isfinite().all(-1, keepdim=True)
            _require(not is_wrong.any(), acceptance, "relaxed_prob", spec, "finite numbers >= 0", found[is_wrong])
        return found

    checked.__name__ = "relaxed_prob"
    vars(acceptance)["relaxed_prob"] = checked
    if hasattr(acceptance, "admits"):
        vars(acceptance)["admits"] = _checked_admits(acceptance, spec)
    for name in _ACCEPTANCE_FUNCTIONS:
        if hasattr(acceptance, name):
            vars(acceptance)[name] = named(getattr(acceptance, name), spec.acceptance, spec)


def _checked_admits(acceptance: Any, spec: MethodSpec) -> Callable[..., torch.Tensor]:
    """Wrap the method `admits` of a user's acceptance, so that its result is checked.

    An acceptance may add the probabilities of a draft's nearest codes to the draft's probability. `admits` limits their
    number. For example, [True, True, False] states that the two nearest codes may be added, but not the three nearest.
    After the first False all entries must be False. The last entry is not checked, since `RelaxedSets` ignores it.

    Args:
        acceptance: the user's acceptance, which has the method `admits`.
        spec: the decoding method, for the error message.
    """
    admits = acceptance.admits

    def checked(mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        found = admits(mass, token_probs, spent)
        _check_tensor(found, mass.shape, acceptance, "admits", spec, torch.bool)
        if _is_readable(found):
            is_prefix = not (found[..., 1:-1] & ~found[..., :-2]).any()  # the last entry is the draft, which may differ
            _require(is_prefix, acceptance, "admits", spec, "a prefix: only False after the first False", "a gap")
        return found

    checked.__name__ = "admits"
    return checked


def watch_verifier(verifier: Any, spec: MethodSpec) -> None:
    """Wrap the verifier of a user's acceptance, so that its exceptions become a `CustomPartError`.

    Args:
        verifier: the verifier, which decides which drafts are accepted. It is changed in place.
        spec: the decoding method.

    Raises:
        CustomPartError: the verifier defines `draws_target_tokens`, the old name of `samples_target_tokens`.
    """
    if hasattr(verifier, "draws_target_tokens"):
        raise CustomPartError(
            f"{type(verifier).__name__} of {spec.acceptance} must not define draws_target_tokens, which is now "
            "samples_target_tokens; rename it"
        )
    vars(verifier)["verify"] = named(verifier.verify, spec.acceptance, spec)


def _check_proposal(
    proposal: object, drafter: Any, spec: MethodSpec, root: torch.Tensor, is_sampled: bool, vocab_size: int
) -> None:
    def require(holds: bool, wanted: str, found: object) -> None:
        _require(holds, drafter, "propose", spec, wanted, found)

    if not isinstance(proposal, Proposal):
        raise _error(drafter, "propose", spec, "a Proposal", type(proposal).__name__)
    tree = proposal.tree
    tokens = proposal.tokens
    if isinstance(drafter.tree, DraftTree):
        same = tree.num_nodes == drafter.tree.num_nodes and tree.max_depth == drafter.tree.max_depth
        require(same, f"its own tree of {drafter.tree.num_nodes} nodes", f"one of {tree.num_nodes}")
    _check_tensor(tokens, (len(root), tree.num_nodes), drafter, "propose", spec, torch.int64, "tokens, ")
    if is_sampled:
        require(proposal.draft_probs is not None, "draft_probs, since it declares is_sampled", None)
        shape = (len(root), tree.children.shape[1], vocab_size)
        _check_tensor(proposal.draft_probs, shape, drafter, "propose", spec, what="draft_probs, ")
    if not _is_readable(tokens):
        return
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
    """Check the shape and dtype of a tensor that a user's function returned.

    Args:
        found: the returned value.
        shape: shape that it must have.
        part: the drafter or acceptance to which the function belongs.
        call: name of the function.
        spec: the decoding method.
        dtype: dtype that the tensor must have. None allows any floating-point dtype.
        what: name of the tensor with a comma, such as "tokens, ", for the error message. Empty if the function returns
            only this tensor.

    Raises:
        CustomPartError: the value is not a tensor, or has another shape or dtype.
    """
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


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether the host can read the values of a tensor now.

    It cannot read values on a GPU while a CUDA graph is captured. Checks of values are then left out.
    """
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
