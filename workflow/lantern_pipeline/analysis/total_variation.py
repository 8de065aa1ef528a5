"""Total variation from the target: every method on its own nodes, every rule on the same nodes; and, on the same nodes,
what aggregating nearest codes does to acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lantern.acceptance.base import Rule
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound, BudgetBound, JensenShannonBound, RelaxedSets, WithinBound
from lantern.decoding import Decoder, make_decoder
from lantern.methods import MethodSpec
from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.analysis.summary import TV_COLUMNS
from lantern_pipeline.metrics.coupled_distribution import knows_drafts, measure_coupled_drafts
from lantern_pipeline.metrics.image_law import ImageTest
from lantern_pipeline.metrics.missing_context import measure_missing_context
from lantern_pipeline.metrics.output_distribution import (
    OutputDistribution,
    VerifiedNodes,
    distribution_given_children,
    distribution_of_one_sampled_draft,
    distribution_of_relaxed_sets,
    distribution_of_sampled_siblings,
    mean_over_nodes,
    record_nodes,
)
from lantern_pipeline.metrics.substitutions import drawn_tokens, substitution_row

ROUNDING = 1e-5  # a total variation computed in float32 counts as above its bound from here on
COLUMNS = ("method_id", "kind", "num_images", "num_nodes", *TV_COLUMNS)
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
    """What all tables share: models, the prompts at whose images' nodes is looked, those whose whole images are tested,
    config section `total_variation`.

    `seed` is that of the noise fields, of the choice of nodes and of the bootstrap over images.
    """

    target_model: TargetModel
    encoder: TextEncoder
    prompts: Sequence[Prompt]
    tested_prompts: Sequence[Prompt]
    settings: Mapping[str, Any]
    num_resamples: int
    seed: int
    batch_size: int

    @property
    def options(self) -> dict[str, int]:
        """Of the bootstrap."""
        return {"num_resamples": self.num_resamples, "seed": self.seed}

    @torch.inference_mode()
    def measure_methods(
        self, decoders: Sequence[Decoder], records: Mapping[str, GenerationRecords], codebook: torch.Tensor
    ) -> pd.DataFrame:
        """Total variation and substitutions of every method at one temperature above 0, at the nodes it visits itself,
        and law_p, the p-value of its whole images.

        `records` are by method id on the whole prompt set, for the substitutions; `codebook` is (vocab, code_dim) as
        the tokenizer decodes it. One row per method, COLUMNS; kind is "enumeration", "monte_carlo", "coupling" where
        substitutions alone tell, as those of exact drafts of the target's noise, "none" for autoregressive decoding and
        where it is not known. Nodes of lines in parallel are tokens, compared with the target in full context.
        """
        rows, image_test = [], ImageTest(self.target_model, self.encoder, self.tested_prompts, self.seed)
        for decoder in tqdm(decoders, desc="total variation", unit="method", disable=None):
            spec = decoder.spec
            row: dict[str, Any] = {"method_id": spec.method_id, "kind": "none" if spec.drafts is None else "coupling"}
            if not spec.is_exact and knows_drafts(spec):
                wanted = {**self._wanted, "num_samples": self.settings["num_samples"]}
                nodes, row["kind"], found = measure_coupled_drafts(decoder, self.prompts, self.encoder, **wanted)
                row |= tv_row(nodes, found, spec.delta, self.options)
            if spec.drafts is not None and spec.tree is None:
                nodes, found = measure_missing_context(decoder, self.prompts, self.encoder, **self._wanted)
                row |= {"kind": "enumeration", **tv_row(nodes, found, spec.delta, self.options)}
            elif not spec.drafter.is_exact:  # drafts do not follow the distributions that are recorded
                row["kind"] = "none"
            elif spec.drafts is not None and not spec.drafter.is_coupled:
                nodes = self._record(decoder)
                num_samples = self.settings["num_samples"]
                row["kind"], found = distribution_of_method(nodes, spec, decoder.rule, num_samples, self.seed)
                row |= tv_row(nodes, found, spec.delta, self.options)
            if not decoder.sampling.is_greedy:
                tested = self._select(records[spec.method_id], self.tested_prompts).codes
                row["law_p"] = image_test.p_value(tested, decoder.sampling)
            if spec.tree is not None and decoder.rule.draws_target_tokens:
                chosen = self._select(records[spec.method_id], self.prompts)
                drawn = drawn_tokens(
                    self.target_model, self.encoder, self.prompts, chosen.codes, decoder.sampling, self.seed
                )
                row |= substitution_row(chosen, drawn, codebook, self.options)
            rows.append(row)
        return pd.DataFrame(rows).reindex(columns=COLUMNS)

    @torch.inference_mode()
    def common_nodes(self, decoder: Decoder) -> VerifiedNodes:
        """Nodes of exact decoding with one sampled draft at a time, where all rules can be compared.

        Any decoder of the run gives its models and its sampling.
        """
        spec = MethodSpec(name="exact", method_id="exact", tree="chain3", drafts="sampled")
        return self._record(make_decoder(decoder.models, spec, decoder.sampling))

    @torch.inference_mode()
    def compare_rules(self, nodes: VerifiedNodes, table: torch.Tensor) -> pd.DataFrame:
        """`tv_curves` with the config's settings."""
        wanted = {name: self.settings[name] for name in ("k", "deltas", "num_children")}
        return tv_curves(nodes, table, **wanted, options=self.options)

    @torch.inference_mode()
    def aggregate(self, nodes: VerifiedNodes, tables: Mapping[str, torch.Tensor]) -> pd.DataFrame:
        """`acceptance_table` with the config's settings."""
        counts, deltas = self.settings["aggregated"], self.settings["aggregated_deltas"]
        return acceptance_table(nodes, tables, counts=counts, deltas=deltas, options=self.options)

    @staticmethod
    def _select(records: GenerationRecords, prompts: Sequence[Prompt]) -> GenerationRecords:
        return records.select([records.prompt_ids.index(prompt.id) for prompt in prompts])

    @property
    def _wanted(self) -> dict[str, int]:
        return {"run_seed": self.seed, "max_nodes": self.settings["max_nodes"], "batch_size": self.batch_size}

    def _record(self, decoder: Decoder) -> VerifiedNodes:
        return record_nodes(decoder, self.prompts, self.encoder, **self._wanted)


def distribution_of_method(
    nodes: VerifiedNodes, spec: MethodSpec, rule: Rule, num_samples: int, seed: int
) -> tuple[str, OutputDistribution]:
    """Output distribution of a method at its own nodes, and its kind: "enumeration" or "monte_carlo".

    `rule` is the method's own above temperature 0; where several children are sampled, the distribution is a mean over
    `num_samples` draws of `seed`.
    """
    if spec.drafts is None or spec.drafter.is_coupled:
        raise ValueError(f"the distribution of {spec.drafts} drafts is not enumerated; count substitutions instead")
    if isinstance(rule, WithinBound):
        return "enumeration", distribution_of_relaxed_sets(nodes.target_probs, nodes.children, rule.sets)
    rejection = rule.rejection.at(nodes.depths) if isinstance(rule, ByRejection) else Rejection()
    if spec.drafts == "top":
        return "enumeration", distribution_given_children(nodes.target_probs, None, nodes.children, rejection)
    if nodes.children.shape[1] == 1:
        return "enumeration", distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, rejection)
    return "monte_carlo", distribution_of_sampled_siblings(nodes, rejection, num_samples=num_samples, seed=seed)


def tv_row(
    nodes: VerifiedNodes, found: OutputDistribution, delta: float | None, options: Mapping[str, int]
) -> dict[str, float]:
    """Summarises total variation over nodes; the share above `delta` is nan where a method has none.

    Means have intervals of a bootstrap that resamples images, since an image's nodes belong together.
    """
    tv, image = found.tv_from(nodes.target_probs).double().cpu(), nodes.image.cpu()
    above = (tv > delta + ROUNDING).double() if delta is not None else torch.full_like(tv, torch.nan)
    return {
        "num_images": len(image.unique()),
        "num_nodes": len(tv),
        **mean_over_nodes("tv_mean", tv, image, options),
        "tv_p95": float(tv.quantile(0.95)),
        "tv_max": float(tv.max()),
        **mean_over_nodes("tv_share_above_delta", above, image, options),
        "monte_carlo_error": float(found.error.mean()),
    }


def tv_curves(
    nodes: VerifiedNodes,
    table: torch.Tensor,
    *,
    k: int,
    deltas: Sequence[float],
    num_children: int,
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Total variation of every rule against delta, a row per rule x delta, all at the same nodes.

    The nodes are of exact decoding with sampled drafts, so that contexts follow the target's distribution; the
    `num_children` top drafts are the most probable ones of the same draft_probs. `acceptance` is the probability that
    a draft is accepted.
    """
    rows = []
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
    target, draft = nodes.target_probs, nodes.draft_probs
    top, bound = draft.topk(num_children, dim=-1).indices, {"k": k, "delta": delta}
    additive = AdditiveBound(table, **bound)

    def sampled(sets: RelaxedSets, residual: str = "paper") -> OutputDistribution:
        return distribution_of_one_sampled_draft(target, draft, Rejection(sets, residual))

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


def acceptance_table(
    nodes: VerifiedNodes,
    tables: Mapping[str, torch.Tensor],
    *,
    counts: Sequence[int],
    deltas: Sequence[float],
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Probability that a node's first draft is accepted, before and after its k nearest codes lend it their mass.

    One row per drafts ("sampled": x ~ p, accepted with min(1, s(x) / p(x)); "top": the most probable x, with s(x)) x
    neighbours (of `tables`, (vocab, columns)) x delta of the additive rule (nan: no bound, always added) x k (0
    always, and what a table can serve).
    """
    rows = []
    for neighbours, table in tables.items():
        for k in sorted({0, *(count for count in counts if count <= table.shape[1])}):
            for delta in (*deltas, np.nan):
                sets = AdditiveBound(table, k=k, delta=1.0 if np.isnan(delta) else delta)
                for drafts, accepted in _acceptances(nodes, sets).items():
                    mean = mean_over_nodes("acceptance", accepted, nodes.image.cpu(), options)
                    head = {"drafts": drafts, "neighbours": neighbours, "k": k, "delta": delta}
                    rows.append({**head, **mean, "num_nodes": len(nodes)})
    return pd.DataFrame(rows)


def _acceptances(nodes: VerifiedNodes, sets: RelaxedSets) -> dict[str, torch.Tensor]:
    """Acceptance of the first draft at each node, (nodes,), by kind of draft."""
    sampled = Rejection(sets).accepted_mass(nodes.target_probs, nodes.draft_probs).sum(-1)
    top = sets.surrogate(nodes.target_probs, None, nodes.draft_probs.argmax(-1, keepdim=True)).squeeze(-1)
    return {"sampled": sampled.cpu(), "top": top.cpu()}
