"""The job of rule tune_tree: measures acceptance and cost on prompts that no table reports, and chooses trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lantern.decoding import Decoder, DecodingModels, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.analysis.tree_tuning import (
    COMBS,
    SIBLINGS,
    Acceptance,
    Candidate,
    StepCost,
    best_candidate,
    best_of_each_size,
    comb,
    fit_cost,
    hybrid_shape,
    jacobi_shape,
    rank_rates,
    shape_as_json,
    shapes_to_try,
    tree_sizes,
)
from lantern_pipeline.data.decoders import tuned_name
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.metrics.accepted_paths import record_paths
from lantern_pipeline.metrics.latency import relative_step_times

# The tree of a window on which all its others are measured.
WIDEST = {
    "jacobi": lambda window: jacobi_shape(window, *SIBLINGS[-1]),
    "hybrid": lambda window: hybrid_shape(window, *COMBS[-1]),
}
BATCH_STEPS = 16  # a step of a batch is longer, and timed so many times less often
ASSUMED = "assumed"  # cost of a machine that is not here, in the column `cost`


def unreported_prompts(candidates: Sequence[Prompt], reported: Sequence[Prompt], num: int) -> list[Prompt]:
    """The first `num` prompts whose text is in no reported set."""
    texts = {prompt.text for prompt in reported}
    found = [prompt for prompt in candidates if prompt.text not in texts][:num]
    if not found:
        raise ValueError(
            f"all {len(candidates)} prompts that trees could be tuned on are reported; ask for fewer (config key "
            "prompts.<name>.num), or name trees in place of tuned"
        )
    return found


@dataclass(frozen=True)
class TreeTuner:
    """What all tuned methods share.

    Attributes:
        models: for decoding, without a table of nearest codes.
        tables: neighbours -> int64 (vocab, columns).
        sampling: config section `sampling`.
        prompts: none of which is reported.
        settings: config section `tree_tuning`.
        batch_size: of generation.
        stepping: how timed steps are run, as `Decoder` takes it.
        timed_threads: CPU threads while steps are timed.
        seed: of the noise fields.
    """

    models: DecodingModels
    tables: Mapping[str, Tensor]
    sampling: Mapping[str, Any]
    prompts: Sequence[Prompt]
    encoder: TextEncoder
    settings: Mapping[str, Any]
    batch_size: int
    stepping: str
    timed_threads: int
    seed: int

    def tune(self, runs: Sequence[tuple[MethodSpec, float]]) -> tuple[dict[str, Any], pd.DataFrame]:
        """Chooses trees for methods at temperatures: (what the file of trees holds, table of predicted speed-ups)."""
        measured = [(*run, self.measure_acceptance(*run)) for run in tqdm(runs, desc="acceptance", disable=None)]
        torch.set_num_threads(self.timed_threads)
        found, tables = {}, []
        for spec, temperature, acceptance in tqdm(measured, desc="cost of steps", disable=None):
            costs = {f"batch {size}": self.measure_cost(spec, temperature, size) for size in self._batch_sizes()}
            shapes = shapes_to_try(spec.drafts, acceptance.rates, self.settings)
            candidates = [acceptance.candidate(shape) for shape in shapes]
            found[tuned_name(spec, temperature)] = self._choose(acceptance, candidates, costs)
            costs[ASSUMED] = StepCost(**self.settings["cost"])
            table = self._predict(candidates, acceptance.candidate(published_shape(spec.drafts)), costs)
            tables.append(table.assign(**method_columns(spec.to_dict()), temperature=temperature))
        return {"num_prompts": len(self.prompts), "methods": found}, pd.concat(tables, ignore_index=True)

    def measure_acceptance(self, spec: MethodSpec, temperature: float) -> Acceptance:
        """Draws images of all prompts with wide trees."""
        if spec.drafts in WIDEST:
            shapes = {window: WIDEST[spec.drafts](window) for window in self.settings["windows"]}
            return Acceptance(None, {window: self._record(spec, temperature, shapes[window]) for window in shapes})
        choices = comb(self.settings["num_ranks"], self.settings["measured_depth"])
        return Acceptance(rank_rates([path for _, path in self._record(spec, temperature, choices)], choices), {})

    def measure_cost(self, spec: MethodSpec, temperature: float, batch_size: int) -> StepCost:
        """Times steps with a few trees beside those of autoregressive decoding."""
        baseline = self._decoder(make_method("autoregressive"), temperature, self.stepping)
        prompts = [self.prompts[place % len(self.prompts)] for place in range(batch_size)]
        num_steps = max(1, self.settings["num_steps"] // (1 if batch_size == 1 else BATCH_STEPS))
        shapes = timed_shapes(spec.drafts, self.settings)
        decoders = [self._decoder(replace(spec, tree_shape=shape), temperature, self.stepping) for shape in shapes]
        options = {"run_seed": self.seed, "num_steps": num_steps}
        costs = relative_step_times(decoders, baseline, prompts, self.encoder, **options)
        return fit_cost([tree_sizes(shape, has_jacobi=spec.drafts == "jacobi") for shape in shapes], costs)

    def _batch_sizes(self) -> list[int]:
        return sorted({1, self.batch_size})

    def _record(self, spec: MethodSpec, temperature: float, shape: Any) -> list[tuple]:
        decoder = self._decoder(replace(spec, tree_shape=shape), temperature)
        return record_paths(decoder, self.prompts, self.encoder, run_seed=self.seed, batch_size=self.batch_size)

    def _decoder(self, spec: MethodSpec, temperature: float, stepping: str = "eager") -> Decoder:
        models = replace(self.models, nearest_codes=self.tables.get(spec.neighbours))
        return make_decoder(models, spec, SamplingConfig(temperature=temperature, **self.sampling), stepping=stepping)

    def _choose(
        self, acceptance: Acceptance, candidates: Sequence[Candidate], costs: Mapping[str, StepCost]
    ) -> dict[str, Any]:
        """A method's entry in the file of trees: the tree is the best one at batch 1, so that images, accepted lengths
        and latency are of one method; what would be best elsewhere stands beside it.
        """
        best = {}
        for name, cost in costs.items():
            found = best_candidate(candidates, cost)
            best[name] = {
                "tree_shape": shape_as_json(found.shape),
                "tokens_per_forward": found.tokens,
                "speedup": found.speedup(cost),
                "cost": asdict(cost),
            }
        return {"tree_shape": best["batch 1"]["tree_shape"], "best": best, "acceptance": acceptance.to_dict()}

    def _predict(
        self, candidates: Sequence[Candidate], published: Candidate | None, costs: Mapping[str, StepCost]
    ) -> pd.DataFrame:
        """Predicted speed-ups by cost: the best tree of every size, the tuned tree and the published one (column
        `mark`).
        """
        tuned = best_candidate(candidates, costs["batch 1"])
        rows = []
        for name, cost in costs.items():
            marked = [("best of its size", found) for found in best_of_each_size(candidates, cost)]
            marked += [("tuned", tuned)] + [("published", published)] * (published is not None)
            rows += [
                {
                    "cost": name,
                    "mark": mark,
                    "num_nodes": found.num_nodes,
                    "depth": found.depth,
                    "tokens_per_forward": found.tokens,
                    "relative_step_time": cost.of(found),
                    "speedup": found.speedup(cost),
                }
                for mark, found in marked
            ]
        return pd.DataFrame(rows)


def timed_shapes(drafts: str, settings: Mapping[str, Any]) -> list[Any]:
    """Trees whose steps are timed, so that nodes and depths vary apart from each other."""
    low, high = min(settings["windows"]), max(settings["windows"])
    if drafts == "jacobi":
        return [jacobi_shape(window, 1, 1) for window in sorted({low, (low + high) // 2, high})]
    if drafts == "hybrid":
        return [hybrid_shape(low, *beside) for beside in ((1, 1), (1, 3), COMBS[-1])] + [hybrid_shape(high, 1, 1)]
    ranks, depth = settings["num_ranks"], settings["measured_depth"]
    return [comb(1, 1), comb(1, depth), comb(ranks, 1), comb(ranks, depth)]


def published_shape(drafts: str) -> Any:
    """The tree that drafts of a kind were published with."""
    return make_method(drafts if drafts in ("jacobi", "hybrid") else "eagle1").tree_shape
