"""Total variation (TV) between the distribution of the emitted token and the target's distribution.

There are two measurements. Each method is measured at the nodes of its draft trees. *Rules* are also compared with each
other, all at the same nodes, as a function of delta, the parameter of their bounds. A rule is a way to choose the
drafts of a node (the most probable tokens of the draft model, or samples) with an acceptance and a residual
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from tqdm import tqdm

from lantern.acceptance.base import ByEquality, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound, JensenShannonBound, RelaxedSets, WithinBound
from lantern.codebook import with_line_end
from lantern.decoding import Decoder, TreeDecoder, make_decoder
from lantern.methods import make_method
from lantern.models.target import Target
from lantern.prompts import Prompt, TextEncoder
from lantern.records import GenerationRecords
from lantern_methods.similarity import BudgetBound
from lantern_pipeline.measure.exactness.coupled_distribution import (
    distribution_of_coupled_siblings,
    knows_drafts,
    measure_coupled_drafts,
)
from lantern_pipeline.measure.exactness.goodness_of_fit import ImageTest
from lantern_pipeline.measure.exactness.losslessness import drawn_tokens, substitution_row
from lantern_pipeline.measure.exactness.output_distribution import (
    OutputDistribution,
    VerifiedNodes,
    distribution_given_children,
    distribution_of_one_sampled_draft,
    distribution_of_relaxed_sets,
    distribution_of_sampled_siblings,
    mean_over_nodes,
    measure_missing_context,
    record_nodes,
)
from lantern_pipeline.measure.registry import ROUNDING, TV_COLUMNS
from lantern_pipeline.schema.run_config import TotalVariationNodes

COLUMNS = ("method_id", "kind", "num_images", "num_nodes", *TV_COLUMNS)
# Rule -> its label. The keys must not change: they are in stored tables of results.
RULES = {
    "top_one_child": "one deterministic draft, LANTERN's bound",
    "top_children": "several deterministic drafts, LANTERN's bound for each",
    "top_official": "several deterministic drafts, the authors' code",
    "bounded": "several deterministic drafts, one budget (ours)",
    "sampled_paper": "one sampled draft, LANTERN's bound",
    "sampled_official": "one sampled draft, the authors' code for LlamaGen",
    "sampled_official_lumina": "one sampled draft, the authors' code for Lumina-mGPT",
    "sampled_js": "one sampled draft, Jensen-Shannon bound",
}


@dataclass(frozen=True)
class TotalVariationStudy:
    """Models, prompts and settings that are the same for all methods.

    Attributes:
        prompts: prompts of the images at whose nodes TV is measured.
        tested_prompts: prompts of the images that `ImageTest` tests as a whole.
        codebook: code vectors as the tokenizer decodes them, (vocab, code_dim).
        options: num_resamples and seed of the bootstrap. The seed also determines the noise and the choice of nodes.
    """

    target_model: Target
    encoder: TextEncoder
    prompts: Sequence[Prompt]
    tested_prompts: Sequence[Prompt]
    codebook: torch.Tensor
    settings: TotalVariationNodes
    options: Mapping[str, int]
    batch_size: int

    @torch.inference_mode()
    def measure_methods(self, decoders: Sequence[Decoder], records: Mapping[str, GenerationRecords]) -> pd.DataFrame:
        """Measure every method at one temperature. `records` maps method ids to the run's images.

        There is one row per method, with columns COLUMNS. law_p is the p-value of `ImageTest`. kind states how the
        output distribution was computed:

        - "enumeration": exactly.
        - "monte_carlo": by Monte Carlo.
        - "coupling": it was not computed, only substitutions are counted. This is the case for drafts that use the
          target's noise, if the method is exact, the drafts' distributions cannot be recorded, the verifier has no
          `verify_nodes`, or the temperature is 0.
        - "none": it was not computed. This is the case for autoregressive decoding and for drafts whose distribution is
          not known. At temperature 0 and for verifiers without `verify_nodes` it is the case for all methods without
          drafts that use the target's noise.
        """
        image_test = ImageTest(self.target_model, self.encoder, self.tested_prompts, self.options["seed"])
        rows = []
        for decoder in tqdm(decoders, desc="total variation", unit="method", disable=None):
            spec, drawn = decoder.spec, records[decoder.spec.method_id]  # `drawn`: its generated images
            kind, measured = self._measure_nodes(decoder)
            row: dict[str, object] = {"method_id": spec.method_id, "kind": kind}
            if measured:
                row |= tv_row(*measured, spec.get("delta"), self.options)
            if not decoder.sampling.is_greedy:
                row["law_p"] = image_test.p_value(_select(drawn, self.tested_prompts).codes, decoder.sampling)
            has_drafts = spec.tree is not None
            # A substitution is defined only if the method samples the target's token at every position.
            if has_drafts and isinstance(decoder, TreeDecoder) and decoder.verifier.samples_target_tokens:
                row |= self._count_substitutions(_select(drawn, self.prompts), decoder)
            rows.append(row)
        return pd.DataFrame(rows).reindex(columns=COLUMNS)

    @torch.inference_mode()
    def common_nodes(self, decoder: Decoder) -> VerifiedNodes:
        """Record the nodes at which all rules are compared, with the models and sampling of any decoder."""
        return visit_exactly(decoder, self.prompts, self.encoder, **self._wanted)

    @property
    def _wanted(self) -> dict[str, int]:
        max_nodes = self.settings.max_nodes
        return {"run_seed": self.options["seed"], "max_nodes": max_nodes, "batch_size": self.batch_size}

    def _measure_nodes(self, decoder: Decoder) -> tuple[str, tuple[VerifiedNodes, OutputDistribution] | None]:
        """Return (kind, (nodes, output distribution)) of a method, or (kind, None)."""
        spec, arguments = decoder.spec, (decoder, self.prompts, self.encoder)
        num_samples = self.settings.num_samples
        seed = self.options["seed"]
        if spec.drafts is None:
            return "none", None
        # A method that generates lines in parallel without drafts has no trees: every token is a node.
        if not isinstance(decoder, TreeDecoder):
            # Of sampled drafts, a token may have been verified in several steps.
            if decoder.sampling.is_greedy or spec.drafts_row.is_sampled:
                return "none", None
            return "enumeration", measure_missing_context(*arguments, **self._wanted)
        if not spec.drafts_row.is_exact:  # drafts do not follow the recorded distributions
            return "none", None
        # Temperature 0 has no noise to average over, and a custom verifier without `verify_nodes` needs whole trees.
        has_nodes = not decoder.sampling.is_greedy and type(decoder.verifier).verify_nodes is not Verifier.verify_nodes
        if not spec.drafts_row.is_coupled:
            if not has_nodes:
                return "none", None
            nodes = record_nodes(*arguments, **self._wanted)
            kind, found = distribution_of_method(nodes, decoder.verifier, num_samples, seed)
            return kind, (nodes, found)
        # An exact method emits the target's sample itself, so its TV is 0.
        if not has_nodes or isinstance(decoder.verifier, ByEquality) or not knows_drafts(spec):
            return "coupling", None
        nodes, kind, found = measure_coupled_drafts(
            decoder, self.prompts, self.encoder, **self._wanted, num_samples=num_samples
        )
        return kind, (nodes, found)

    def _count_substitutions(self, records: GenerationRecords, decoder: Decoder) -> dict[str, float]:
        target, seed = (self.target_model, self.encoder, self.prompts), self.options["seed"]
        drawn = drawn_tokens(*target, records.codes, decoder.sampling, seed)
        return substitution_row(records, drawn, self.codebook, self.options)


def visit_exactly(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, max_nodes: int, batch_size: int
) -> VerifiedNodes:
    """Record nodes during exact decoding with chains of three sampled drafts, of which each node has one."""
    # The tokens before a node are thus samples of the target, whichever rule is measured there later. The file
    # evaluate.smk names the preset, too.
    exact = make_decoder(decoder.models, make_method("eagle1", tree="chain3"), decoder.sampling)
    return record_nodes(exact, prompts, encoder, run_seed=run_seed, max_nodes=max_nodes, batch_size=batch_size)


def _select(records: GenerationRecords, prompts: Sequence[Prompt]) -> GenerationRecords:
    return records.select([records.prompt_ids.index(prompt.id) for prompt in prompts])


def distribution_of_method(
    nodes: VerifiedNodes, verifier: Verifier, num_samples: int, seed: int
) -> tuple[str, OutputDistribution]:
    """Return the kind and the output distribution of a method at given nodes, above temperature 0.

    The drafts do not use the target's noise. The kind is "monte_carlo" for several sampled drafts per node and for
    verifiers without a formula, such as `ByProximity`, else "enumeration".
    """
    if isinstance(verifier, WithinBound):
        return "enumeration", distribution_of_relaxed_sets(nodes.target_probs, nodes.children, verifier.sets)
    if not isinstance(verifier, ByEquality | ByRejection):
        # Distributions of 0 state that the drafts do not depend on the noise, and so are not sampled anew.
        given = replace(nodes, draft_probs=torch.zeros_like(nodes.target_probs))
        found = distribution_of_coupled_siblings(given, verifier, num_samples=num_samples, seed=seed)
        return "monte_carlo", found
    rejection = verifier.rejection.at(nodes.depths) if isinstance(verifier, ByRejection) else Rejection()
    if nodes.draft_probs is None:
        return "enumeration", distribution_given_children(nodes.target_probs, None, nodes.children, rejection)
    if nodes.children.shape[1] == 1:
        return "enumeration", distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, rejection)
    return "monte_carlo", distribution_of_sampled_siblings(nodes, rejection, num_samples=num_samples, seed=seed)


def tv_row(
    nodes: VerifiedNodes, found: OutputDistribution, delta: float | None, options: Mapping[str, int]
) -> dict[str, float]:
    """Summarise the TV over many nodes, as columns of a table.

    tv_share_above_delta is the share of nodes whose TV exceeds `delta`, nan if `delta` is None. Intervals of means come
    from a bootstrap over images, because the nodes of one image are dependent.
    """
    tv, image = found.tv_from(nodes.target_probs).double().cpu(), nodes.image.cpu()
    error = found.error.double().cpu()
    # Noise makes a TV too large, so only the lower end of tv_mean allows for it. A share above a bound can be wrong on
    # both sides.
    ends = (tv - error).clamp(min=0), tv + error  # Monte Carlo noise adds at most `error` on average
    above, least, most = (
        (part > delta + ROUNDING).double() if delta is not None else torch.full_like(tv, torch.nan)
        for part in (tv, *ends)
    )
    return {
        "num_images": len(image.unique()),
        "num_nodes": len(tv),
        **mean_over_nodes("tv_mean", tv, image, options, (ends[0], tv)),
        "tv_p95": float(tv.quantile(0.95)),
        "tv_max": float(tv.max()),
        **mean_over_nodes("tv_share_above_delta", above, image, options, (least, most)),
        "monte_carlo_error": float(found.error.mean()),
    }


@torch.inference_mode()
def tv_curves(
    nodes: VerifiedNodes,
    table: torch.Tensor,
    *,
    k: int,
    deltas: Sequence[float],
    num_children: int,
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Compute the TV of every rule for several values of delta, at the same nodes.

    `table` has nearest codes, (vocab, columns). There is one row per delta and rule. Columns rule and label are key and
    value in RULES, acceptance is the mean probability that a draft is accepted, and the others are those of `tv_row`.
    """
    rows, table = [], with_line_end(table, nodes.target_probs.shape[1])  # any draft can index the table
    for delta in deltas:
        for name, compute in _rules(nodes, table, k, delta, num_children).items():
            found = compute()
            acceptance = {"acceptance": float(found.acceptance.mean())}
            head = {"rule": name, "label": RULES[name], "delta": delta}
            rows.append({**head, **acceptance, **tv_row(nodes, found, delta, options)})
    return pd.DataFrame(rows)


def _rules(
    nodes: VerifiedNodes, table: torch.Tensor, k: int, delta: float, num_children: int
) -> dict[str, Callable[[], OutputDistribution]]:
    target, draft = nodes.target_probs, nodes.drawn_from
    top, bound = draft.topk(num_children, dim=-1).indices, {"k": k, "delta": delta}
    additive = AdditiveBound(table, **bound)

    def sampled(sets: RelaxedSets, residual: str = "paper") -> OutputDistribution:
        return distribution_of_one_sampled_draft(target, draft, Rejection(sets, residual))

    # Functions, so that only one result of (nodes, vocab) is in memory at once.
    return {
        "top_one_child": lambda: distribution_of_relaxed_sets(target, top[:, :1], additive),
        "top_children": lambda: distribution_of_relaxed_sets(target, top, additive),
        "top_official": lambda: distribution_given_children(target, None, top, Rejection(additive, "official")),
        "bounded": lambda: distribution_of_relaxed_sets(target, top, BudgetBound(table, **bound)),
        "sampled_paper": lambda: sampled(additive),
        "sampled_official": lambda: sampled(additive, "official"),
        "sampled_official_lumina": lambda: sampled(additive, "official_lumina"),
        "sampled_js": lambda: sampled(JensenShannonBound(table, **bound)),
    }
