"""SJD-SV: speculative Jacobi decoding with suffix verification, as a package that adds the method by being installed.

The drafts are those of SJD. Let x be a draft, t the target distribution after the drafts before x, p the distribution
that x was sampled from, and s(x) the relaxed probability of the method's acceptance, which is t(x) if that is exact.

1. The chain of drafts is cut into *runs*, each as long as possible, in which t(x) does not fall.
2. The *suffix* of a run is its last drafts, the fewest that hold the share alpha of the run's sum of t(x).
3. The drafts before the suffix are tested one by one: u p(x) <= s(x), where u is uniform.
4. The suffix is accepted if u prod p(x) <= prod s(x). If not, its last draft is dropped, and the rest is tested with a
   new u, down to a single draft.
5. The first draft that is not accepted is replaced by a token of the residual max(0, t - p).

This is not exact: a draft of a suffix has several chances to be accepted, while its residual is that of a single test.
No bound is known.

Source: SJD-SV (arXiv 2609.13245), unverified: the paper could not be read, nor was there code. It is not known whether
the drafts before a suffix are tested one by one, whether drafts of equal t(x) are in one run, whether the drafts of the
next step are sampled anew, as in SJD, and what relaxation does to runs and shares, which here remain those of t(x).
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.rejection import ACCEPT, ByRejection, Rejection
from lantern.decoding import make_verifier
from lantern.drafters.base import Drafter
from lantern.methods import MethodSpec, is_chain
from lantern.noise import TARGET
from lantern.parameters import Parameter
from lantern.registry import DraftsRow, PresetRow, declare
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Proposal, Scores
from lantern_methods.sjd import SpeculativeJacobiDrafter


class SuffixDrafter(SpeculativeJacobiDrafter):
    """The drafter of SJD, with the verifier of SJD-SV. At temperature 0 drafts are verified by equality."""

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        if not is_chain(spec.tree_shape):
            raise ValueError(f"drafts sjd_sv need a chain, got tree {spec.tree} for {spec.label}; use chain15")
        drafter = super().make(models, spec, sampling)
        if not sampling.is_greedy:
            # Sampled drafts have this kind of verifier, whatever the acceptance.
            tests = cast("ByRejection", make_verifier(models, spec, sampling))
            drafter.verifier = BySuffix(tests.rejection, spec["alpha"])
        return drafter


class BySuffix(ByRejection):
    """The verifier of SJD-SV, for a chain of drafts.

    Args:
        alpha: share of a run's sum of t(x) that its suffix holds.
    """

    def __init__(self, rejection: Rejection, alpha: float) -> None:
        super().__init__(rejection)
        self.alpha = alpha

    @override
    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Node d of the chain predicts draft d, counted from 0, and the last node predicts the token after all drafts.
        drafts = proposal.tokens[:, 1:, None]  # (batch, drafts, 1)
        probs = scores.weights[:, :-1].softmax(-1)
        positions = scores.positions[:, :-1]
        (test,) = self.rejection.try_siblings(probs, drafts, proposal.draft_probs)
        # In logarithms, since a product of small probabilities underflows. -inf refuses a draft in every test.
        can_pass = test.is_tried & (test.relaxed_prob > 0)
        log_ratios = torch.where(can_pass, test.relaxed_prob.log() - test.token_draft.log(), -torch.inf)[..., 0]
        # Row e is the test that ends at draft e: the drafts of its group up to e.
        groups = group_drafts(probs.gather(-1, drafts)[..., 0], self.alpha)
        is_tested = (groups[:, :, None] == groups[:, None, :]).tril()  # (batch, drafts, drafts)
        log_products = torch.where(is_tested, log_ratios[:, None, :], 0.0).sum(-1)
        # One slot for each length of a test. After a test was decisive, its first draft is emitted or replaced, so that
        # no later step has a test of this end and length. A single draft reads the number that SJD reads.
        lengths = is_tested.sum(-1, keepdim=True)
        uniforms = scores.noise.uniform(ACCEPT, positions, drafts.shape[1]).gather(-1, lengths - 1)[..., 0]
        is_passed = (uniforms.log() <= log_products) & log_products.isfinite()
        # A test that is passed accepts all of its drafts, whatever the tests with more drafts said before.
        is_accepted = F.pad((is_tested & is_passed[..., None]).any(1), (1, 0))  # the root's entry has no meaning
        _, replacement = (test.residual.log() + scores.noise.gumbel(TARGET, positions)).max(-1)
        best, sampled = scores.keys.max(-1)
        return is_accepted, torch.cat([replacement, sampled[:, -1:]], dim=1), best


def group_drafts(token_probs: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return the group of each draft of a chain, counted from 1: drafts of a group are tested together.

    A group is a suffix, or a draft before one. `token_probs` are t(x), (batch, drafts), as the result.
    """
    begins_run = F.pad(token_probs[:, 1:] < token_probs[:, :-1], (1, 0), value=True)
    runs = begins_run.cumsum(1)
    is_same = runs[:, :, None] == runs[:, None, :]
    in_run = torch.where(is_same, token_probs[:, None, :], 0.0)  # (batch, drafts, drafts)
    # The suffix needs a draft if those after it in the run hold less than the share.
    is_in_suffix = in_run.triu(1).sum(-1) < alpha * in_run.sum(-1)
    # Within a run, a draft belongs to the group of the one before if that is in the suffix: then both are.
    return (begins_run | ~F.pad(is_in_suffix[:, :-1], (1, 0))).cumsum(1)


declare(
    "sjd_sv",
    DraftsRow(
        "lantern_sjd_sv:SuffixDrafter",
        parameters={"alpha": Parameter("α", "share of a run's probability that its suffix holds", 0, 1, is_open=True)},
        is_sampled=True,
        is_exact=False,
        is_relaxable=True,
        paper="SJD-SV, arXiv 2609.13245",
    ),
)
_PARTS = {"tree": "chain15", "drafts": "sjd_sv", "alpha": 0.8}
declare("sjd_sv", PresetRow("SJD-SV", _PARTS, is_peer=True, is_unverified=True))
