"""Tables of the law of the emitted token: every method on its own nodes, every rule on the same nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from lantern.acceptance import RejectionRule
from lantern.decoding import Decoder
from lantern.methods import MethodSpec
from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.relaxation import AdditiveBound, BudgetBound, JensenShannonBound, make_relaxation
from lantern_pipeline.analysis.aggregation import acceptance_table
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

ROUNDING = 1e-5  # a TV computed in float32 counts as above its bound from here on
MEANS = ("tv_mean", "tv_share_above_delta", "substitution_rate")
LAW_COLUMNS = (
    "method_id",
    "kind",
    "num_images",
    "num_nodes",
    *(f"{name}{end}" for name in MEANS for end in ("", "_low", "_high")),
    "tv_p95",
    "tv_max",
    "monte_carlo_error",
    "substitution_distance",
)
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
class LawStudy:
    """What all tables of laws share.

    Attributes:
        target_model: in evaluation mode, for the target's own draws.
        encoder: of prompts.
        prompts: whose images are looked at.
        settings: config section `total_variation`.
        num_resamples: of the bootstrap over images.
        seed: of the noise fields, the choice of nodes and the bootstrap.
        batch_size: images decoded together.
    """

    target_model: TargetModel
    encoder: TextEncoder
    prompts: Sequence[Prompt]
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
        """Law and substitutions of every method, each at the nodes that it visits itself.

        Args:
            decoders: methods at one temperature above 0.
            records: method id -> its records on the whole prompt set, for the substitutions.
            codebook: (vocab, code_dim) as the tokenizer decodes it.

        Returns:
            One row per method: method_id, kind ("enumeration", "monte_carlo", "coupling" where drafts share the
            target's noise, "none" for autoregressive decoding), `law_row` and `substitution_row`, where they apply.
        """
        rows = []
        for decoder in tqdm(decoders, desc="law", unit="method", disable=None):
            spec = decoder.spec
            row: dict[str, Any] = {"method_id": spec.method_id, "kind": "none" if spec.drafts is None else "coupling"}
            if spec.drafts in ("sampled", "top"):
                nodes = self._record(decoder)
                table, num_samples = decoder.verifier.table, self.settings["num_samples"]
                row["kind"], law = law_of_method(nodes, spec, table, num_samples=num_samples, seed=self.seed)
                row |= law_row(nodes, law, spec.delta, self.options)
            if spec.drafts is not None and decoder.verifier.draws_target_tokens:
                rows_wanted = [records[spec.method_id].prompt_ids.index(prompt.id) for prompt in self.prompts]
                chosen = records[spec.method_id].select(rows_wanted)
                drawn = drawn_tokens(
                    self.target_model, self.encoder, self.prompts, chosen.codes, decoder.sampling, self.seed
                )
                row |= substitution_row(chosen, drawn, codebook, self.options)
            rows.append(row)
        return pd.DataFrame(rows).reindex(columns=LAW_COLUMNS)

    @torch.inference_mode()
    def common_nodes(self, decoder: Decoder) -> VerifiedNodes:
        """Nodes of exact decoding with one sampled draft at a time, where all rules can be compared.

        Args:
            decoder: any method of the run, for its models and its sampling.
        """
        spec = MethodSpec(name="exact", method_id="exact", tree="chain3", drafts="sampled")
        return self._record(Decoder(decoder.models, spec, decoder.sampling))

    @torch.inference_mode()
    def compare_rules(self, nodes: VerifiedNodes, table: torch.Tensor) -> pd.DataFrame:
        """`law_curves` with the config's settings."""
        wanted = {name: self.settings[name] for name in ("k", "deltas", "num_children")}
        return law_curves(nodes, table, **wanted, options=self.options)

    @torch.inference_mode()
    def aggregate(self, nodes: VerifiedNodes, tables: Mapping[str, torch.Tensor]) -> pd.DataFrame:
        """`acceptance_table` with the config's settings."""
        counts, deltas = self.settings["aggregated"], self.settings["aggregated_deltas"]
        return acceptance_table(nodes, tables, counts=counts, deltas=deltas, options=self.options)

    def _record(self, decoder: Decoder) -> VerifiedNodes:
        wanted = {"run_seed": self.seed, "max_nodes": self.settings["max_nodes"], "batch_size": self.batch_size}
        return record_nodes(decoder, self.prompts, self.encoder, **wanted)


def law_of_method(
    nodes: VerifiedNodes, spec: MethodSpec, table: torch.Tensor | None, *, num_samples: int, seed: int
) -> tuple[str, OutputDistribution]:
    """Law of a method with sampled or top drafts at its own nodes.

    Args:
        nodes: recorded from this method.
        spec: the method.
        table: int64, (vocab, > k): nearest codes; None without relaxation.
        num_samples: Monte Carlo draws, for nodes with several sampled children.
        seed: of these draws.

    Returns:
        ("enumeration" or "monte_carlo", the law).

    Raises:
        ValueError: coupled drafts, whose law depends on noise that target and draft model share.
    """
    if spec.drafts not in ("sampled", "top"):
        raise ValueError(f"the law of {spec.drafts} drafts is not enumerated; count substitutions instead")
    relaxation = make_relaxation(spec)
    rule = RejectionRule(relaxation, table, spec.residual)
    if spec.drafts == "sampled" and nodes.children.shape[1] > 1:
        return "monte_carlo", distribution_of_sampled_siblings(nodes, rule, num_samples=num_samples, seed=seed)
    if spec.drafts == "sampled":
        return "enumeration", distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, rule)
    if relaxation is None or spec.residual != "paper":
        return "enumeration", distribution_given_children(nodes.target_probs, None, nodes.children, rule)
    return "enumeration", distribution_of_relaxed_sets(nodes.target_probs, nodes.children, table, relaxation)


def law_row(
    nodes: VerifiedNodes, law: OutputDistribution, delta: float | None, options: Mapping[str, int]
) -> dict[str, float]:
    """Summarises TV over nodes.

    Args:
        nodes: where the law was computed.
        law: of the emitted token.
        delta: the bound that TV is held against; None where the method has none.
        options: num_resamples and seed of the bootstrap, which resamples images, since an image's nodes belong
            together.

    Returns:
        num_images, num_nodes, tv_mean, tv_p95, tv_max, tv_share_above_delta (share of nodes; nan without delta), each
        of the two means with _low and _high; monte_carlo_error (mean over nodes).
    """
    tv, image = law.tv_from(nodes.target_probs).double().cpu(), nodes.image.cpu()
    above = (tv > delta + ROUNDING).double() if delta is not None else torch.full_like(tv, torch.nan)
    return {
        "num_images": len(image.unique()),
        "num_nodes": len(tv),
        **mean_over_nodes("tv_mean", tv, image, options),
        "tv_p95": float(tv.quantile(0.95)),
        "tv_max": float(tv.max()),
        **mean_over_nodes("tv_share_above_delta", above, image, options),
        "monte_carlo_error": float(law.error.mean()),
    }


def law_curves(
    nodes: VerifiedNodes,
    table: torch.Tensor,
    *,
    k: int,
    deltas: Sequence[float],
    num_children: int,
    options: Mapping[str, int],
) -> pd.DataFrame:
    """TV of every rule against delta, all at the same nodes.

    Args:
        nodes: visited by exact decoding with sampled drafts, so that contexts follow the target's law; the top drafts
            are the most probable ones of the same draft_probs.
        table: int64, (vocab, > k): nearest codes.
        k: nearest codes considered.
        deltas: bounds in [0, 1].
        num_children: deterministic drafts per node, for the rules with several.
        options: num_resamples and seed of the bootstrap over images.

    Returns:
        One row per rule x delta: rule, label, delta, acceptance (probability that a draft is accepted), and `law_row`.
    """
    rows = []
    for delta in deltas:
        for name, compute in _rules(nodes, table, k, delta, num_children).items():
            law = compute()
            acceptance = {"acceptance": float(law.acceptance.mean())}
            head = {"rule": name, "label": RULES[name], "delta": delta}
            rows.append({**head, **acceptance, **law_row(nodes, law, delta, options)})
    return pd.DataFrame(rows)


def _rules(
    nodes: VerifiedNodes, table: torch.Tensor, k: int, delta: float, num_children: int
) -> dict[str, Callable[[], OutputDistribution]]:
    target, draft = nodes.target_probs, nodes.draft_probs
    top, additive = draft.topk(num_children, dim=-1).indices, AdditiveBound(k, delta)

    def sampled(rule: RejectionRule) -> OutputDistribution:
        return distribution_of_one_sampled_draft(target, draft, rule)

    return {
        "top_one_child": lambda: distribution_of_relaxed_sets(target, top[:, :1], table, additive),
        "top_children": lambda: distribution_of_relaxed_sets(target, top, table, additive),
        "top_official": lambda: distribution_given_children(
            target, None, top, RejectionRule(additive, table, "official")
        ),
        "bounded": lambda: distribution_of_relaxed_sets(target, top, table, BudgetBound(k, delta)),
        "sampled_paper": lambda: sampled(RejectionRule(additive, table)),
        "sampled_official": lambda: sampled(RejectionRule(additive, table, "official")),
        "sampled_official_lumina": lambda: sampled(RejectionRule(additive, table, "official_lumina")),
        "sampled_js": lambda: sampled(RejectionRule(JensenShannonBound(k, delta), table)),
    }
