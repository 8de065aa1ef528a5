"""Small tables and checks that the tests of several figures share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from torch import nn

from lantern.methods import MethodSpec
from lantern.records import GenerationRecords
from lantern_pipeline.data.tables import method_columns

SETTINGS = {"headline_prompt_set": "seen", "headline_temperature": 1.0}
AUTOREGRESSIVE = MethodSpec.of("autoregressive", method_id="autoregressive")
COUPLED = MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="coupled")
SAMPLED = MethodSpec.of(
    "lantern",
    tree="chain5",
    drafts="sampled",
    acceptance="additive",
    residual="paper",
    neighbours="l2_normalised",
    k=20,
    delta=0.1,
    method_id="lantern-k20",
)
PROXIMITY = MethodSpec.of(
    "proximity",
    tree="chain3",
    drafts="coupled",
    acceptance="proximity",
    residual="paper",
    neighbours="l2_normalised",
    k=5,
    method_id="proximity-k5",
)
SPECS = (AUTOREGRESSIVE, COUPLED, SAMPLED, PROXIMITY)
MEASURES = ("speedup", "tokens_per_forward", "nll", "prompt_accuracy")
FACTORS = {"bounded": 0.5, "top_children": 2.0, "sampled_paper": 1.5}
MASSES = {"base": 0.80, "chameleon": 0.79, "janus": 0.79, "codes_4096": 0.5}


def make_summary(temperature: float = 1.0, repeat: str = "s0n0") -> pd.DataFrame:
    """Return the results table of four made-up methods.

    The measures of the methods are 1, 2, 3 and 4. Their intervals reach from 0.25 below to 0.5 above. Coupled drafts
    have a substitution rate of 0. LANTERN and proximity have a total variation above 0.

    Args:
        temperature: value of the column.
        repeat: value of the column, the seeds of the repeat.
    """
    rows = []
    for place, spec in enumerate(SPECS, start=1):
        row = method_columns(spec.to_dict())
        row |= {"prompt_set": "seen", "temperature": temperature, "repeat": repeat}
        row |= {"target_cross_entropy": 3.25, "target_prompt_accuracy": 0.75}
        row |= {"tv_mean": {3: 0.3, 4: 0.1}.get(place), "substitution_rate": {2: 0.0, 4: 0.2}.get(place)}
        for name in MEASURES:
            row |= {name: float(place), f"{name}_low": place - 0.25, f"{name}_high": place + 0.5}
        rows.append(row)
    return pd.DataFrame(rows)


def node_summary() -> pd.DataFrame:
    """Exact drafts in trees of several sizes, in no order, and what figure (s) leaves out."""
    near = {"acceptance": "proximity", "neighbours": "l2", "k": 5}
    specs = [
        AUTOREGRESSIVE,
        MethodSpec.of("jacobi", tree="jacobi_50", drafts="jacobi", method_id="jacobi-jacobi_50"),
        MethodSpec.of("jacobi", tree="chain9", drafts="jacobi", method_id="jacobi"),
        MethodSpec.of("hybrid", tree="chain9+chain3", drafts="hybrid", method_id="hybrid"),
        MethodSpec.of("hybrid", tree="hybrid_16", drafts="hybrid", method_id="hybrid-hybrid_16"),
        MethodSpec.of("mine", tree="chain9", drafts="jacobi", method_id="mine", **near),
    ]
    rows = []
    for place, spec in enumerate(specs):
        row = method_columns(spec.to_dict()) | {"prompt_set": "seen", "temperature": 1.0, "repeat": "s0n0"}
        row |= {"num_images": 8, "num_near_ties": 0, "tokens_equal_autoregressive": 1.0, "prompt_accuracy": 0.5}
        rows.append(row | with_interval("tokens_per_forward", 1.0 + place) | with_interval("speedup", 1.0))
    return pd.DataFrame(rows)


def with_interval(name: str, value: float, below: float = 0.1, above: float = 0.2) -> dict[str, float]:
    """Return the three columns of a measured value: the value, and the low and high end of its interval."""
    return {name: value, f"{name}_low": value - below, f"{name}_high": value + above}


def ablation_table() -> pd.DataFrame:
    """Return four ablations of one or two methods, and a row of autoregressive decoding.

    The NLL change of a row is its accepted length minus 1.
    """

    def variant(ablation: str, spec: MethodSpec, value: float, **changes: object) -> dict[str, object]:
        row = method_columns(spec.to_dict()) | {"ablation": ablation, "temperature": 1.0, "cfg_scale": 3.0}
        row |= {"top_k": 100, "drafter_steps": np.nan}
        return row | with_interval("tokens_per_forward", 1 + value) | with_interval("nll_change", value) | changes

    rows = [variant("k", PROXIMITY, 0.1 * k, k=k) for k in (1, 3)]
    rows += [variant("tree", COUPLED, 0.5, tree=tree) for tree in ("chain3", "naive_extend_57")]
    rows += [variant("guidance", spec, 0.5, cfg_scale=s) for s in (1, 3) for spec in (COUPLED, PROXIMITY)]
    rows += [variant("drafter_steps", COUPLED, 0.5, drafter_steps=steps) for steps in (40, np.nan)]
    return pd.DataFrame([*rows, variant("guidance", AUTOREGRESSIVE, 0.0)])


def ambiguity_table() -> pd.DataFrame:
    """Return a table like quality/ambiguity.csv, with two guidance scales.

    Its columns are the probabilities of the target's top-1 and top-10 codes.
    """
    generator = np.random.default_rng(0)
    masses = {scale: {"top1": generator.beta(1, 5, 99), "top10": generator.beta(3, 3, 99)} for scale in (1, 3)}
    return pd.concat([pd.DataFrame({"cfg_scale": scale, **values}) for scale, values in masses.items()])


def generality_table() -> pd.DataFrame:
    """Return a table like generality.csv: four methods on the four targets of MASSES, three of which are similar."""
    gain = {"gain": np.nan, "gain_low": np.nan, "gain_high": np.nan}
    rows = [
        {"target": name, "top10": mass, **method_columns(spec.to_dict())}
        | with_interval("tokens_per_forward", place + 1 - mass)
        | (gain if spec.is_exact else with_interval("gain", 1.5 - mass))
        for name, mass in MASSES.items()
        for place, spec in enumerate(SPECS, 1)
    ]
    return pd.DataFrame(rows)


def grid_table() -> pd.DataFrame:
    """Return a table like generality.csv: five methods on three grids, the largest grid first.

    Two methods differ in a parameter only. A method's tokens per forward pass are its number plus a tenth of the side.
    """
    specs = (*SPECS, replace(PROXIMITY, parameters={"k": 9}, method_id="proximity-k9"))
    return pd.DataFrame(
        [
            {"target": f"grid_{side}", "grid_side": side, **method_columns(spec.to_dict())}
            | with_interval("tokens_per_forward", place + side / 10)
            for side in (16, 8, 12)
            for place, spec in enumerate(specs)
        ]
    )


def curve_table() -> pd.DataFrame:
    """Return a table like total_variation/curves.csv.

    It has the total variation of several acceptances at several values of delta, which is delta times the acceptance's
    factor in FACTORS.
    """
    rows = [
        {"rule": rule, "label": f"rule {rule}", "delta": delta, "tv_p95": min(1.0, 2 * factor * delta)}
        | with_interval("tv_mean", factor * delta, 0.0, 0.0)
        for rule, factor in FACTORS.items()
        for delta in (0.4, 0.1, 0.2)
    ]
    return pd.DataFrame(rows)


def premise_table() -> pd.DataFrame:
    """Return a table like premise.csv, for two values of k and of delta.

    Prompt accuracy is 0.9 without replaced codes. Each nearest code lowers it by 0.01, each random code by 0.1.
    """
    rows = []
    for kind, k, loss in [("none", 0, 0), *(("l2_normalised", k, 0.01 * k) for k in (1, 5)), ("random", 1, 0.1)]:
        row = {"neighbours": kind, "k": k, "efficientnet_frechet_distance": 20 + 100 * loss}
        row |= with_interval("prompt_accuracy", 0.9 - loss, 0.01, 0.01)
        for delta in (0.1, 0.4):
            row |= {f"acceptance_{delta}": 0.4 + delta * loss, **with_interval(f"tv_mean_{delta}", delta * loss)}
        rows.append(row)
    return pd.DataFrame(rows).assign(target_top1=0.25, target_top10=0.75, target_entropy=3.0)


def method_table() -> pd.DataFrame:
    """Return a table like total_variation/methods.csv, with how far methods are from the target.

    LANTERN's total variation is 0.3. For methods with coupled drafts, only the share of tokens that differ from the
    target's sample is known.
    """
    known = {
        "autoregressive": ("none", np.nan, np.nan),
        "coupled": ("coupling", np.nan, 0.0),
        "lantern-k20": ("enumeration", 0.3, np.nan),
        "proximity-k5": ("coupling", np.nan, 0.2),
    }
    rows = [
        {"method_id": method_id, "kind": kind} | with_interval("tv_mean", tv) | with_interval("substitution_rate", rate)
        for method_id, (kind, tv, rate) in known.items()
    ]
    return pd.DataFrame(rows).assign(prompt_set="seen", temperature=1.0, repeat="s0n0")


def make_records(spec: MethodSpec, codes: torch.Tensor, **tensors: torch.Tensor) -> GenerationRecords:
    """Return the records of images with the prompt ids p0, p1 and so on.

    Args:
        spec: the method.
        codes: the tokens, (images, tokens).
        tensors: further fields of `GenerationRecords`. Fields that are not given are empty.
    """
    num = len(codes)
    names = ("step_lengths", "accepted_nodes", "is_substituted", "seconds", "margins")
    empty = {name: torch.zeros(num, 0) for name in names}
    fields = {**empty, "target_forwards": torch.ones(num, dtype=torch.int32), **tensors}
    ids = [f"p{i}" for i in range(num)]
    return GenerationRecords(ids, codes, **fields, metadata={"method": spec.to_dict()})


class Mosaic(nn.Module):
    """Image tokenizer of 8 codes that decodes code c to 2 x 2 pixels of grey level c / 4 - 1.

    Args:
        shape: height and width of an image in codes.
    """

    def __init__(self, shape: tuple[int, int] = (2, 2)):
        super().__init__()
        self.config = SimpleNamespace(shape=shape, codebook_size=8)
        self.weight = nn.Parameter(torch.ones(1))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        grey = codes.float() / 4 - 1  # (images, height, width)
        return grey.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None].expand(-1, 3, -1, -1)
