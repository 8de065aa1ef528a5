"""The papers' claims, here: what LANTERN and LANTERN++ claim, and whether a run at their authors' settings shows it.

*Length* is tokens per forward pass of the target. Methods are compared prompt by prompt, with the same noise. A claim
that one length is larger (`_larger`) *holds* if the whole 95 % interval of the ratio is above 1 in all settings, *does
not* if it is below 1 in all, and else holds *in part*. A claim about quality (`_verdict`) holds if all measures show
it, in part if some do, and does not if none does. A claim that two methods do the same holds if no difference is
detected (in `_same_order`: if all are 0), and else in part. Claims about time are marked: they need a GPU.

Each function that returns a `Row` judges one claim, and returns None if the run lacks what it compares. `_papers`,
`_quality` and `_ours` yield them in the order of the table. Sources of the published numbers: published_results.csv.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import bootstrap_interval, mean_statistic
from lantern_pipeline.measure.repeats import stack_prompts
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.comparisons import compare_at_equal_length
from lantern_pipeline.tables.summary import MetricsSection, preferred_rows

HOLDS, IN_PART, NOT, ON_A_GPU = "holds", "in part", "does not", "needs a GPU"
STATIC, DYNAMIC = "naive_extend_57", "dynamic58k10d4"  # the authors' trees
TITLES = ("claim", "published", "here", "verdict")

# Methods of experiments/papers.yaml, by columns of the table of results.
EAGLE_2 = {"method": "eagle2", "tree": DYNAMIC}
LANTERN = {"method": "lantern", "tree": DYNAMIC, "acceptance": "additive"}
EAGLE_1 = {"method": "eagle1", "tree": STATIC}
LANTERN_PP = {"method": "lantern_pp", "tree": STATIC}
RELEASED = {"k": 10, "lambda_": 5}  # the first (k, lambda_) in the authors' scripts
HYBRID = {"method": "hybrid", "tree": "hybrid_50"}
JACOBI = {"method": "jacobi_50"}

Interval = tuple[float, float, float]  # value, low, high


def judge_papers(
    summary: pd.DataFrame, images: pd.DataFrame, ambiguity: pd.DataFrame, *, settings: MetricsSection, seed: int
) -> list[dict[str, str]]:
    """Return one dict of texts with keys TITLES per claim of the two papers, and of ours about them.

    Args:
        summary: from `build_summary`.
        images: one row per method and image.
        ambiguity: top1 at every position of some images, from `measure_ambiguity`.
    """
    run = _Run.of(summary, images, settings, seed)
    rows = [row for judge in (_papers, _quality, _ours) for row in judge(run) if row]
    # Any run can judge the target's ambiguity, but the table is for runs with the papers' methods.
    if rows:
        rows = [_ambiguous(run, ambiguity), *rows, _TIMES]
    return [dict(zip(TITLES, row, strict=True)) for row in rows]


_TIMES = (
    "the speed-up in time: what a step of 57 drafts costs",
    "2.26x greedy, 1.69x sampled (LANTERN); up to 2.56x (LANTERN++)",
    "on a CPU a step pays for every draft: see the speed-ups of the default run",
    ON_A_GPU,
)
Row = tuple[str, str, str, str] | None


@dataclass(frozen=True)
class _Run:
    """The headline prompt set: its rows, one per method and temperature, and its images."""

    rows: pd.DataFrame
    images: pd.DataFrame
    neighbours: str | None  # the run's own distance between codes
    options: Mapping[str, int]

    @classmethod
    def of(cls, summary: pd.DataFrame, images: pd.DataFrame, settings: MetricsSection, seed: int) -> _Run:
        place = settings["headline_prompt_set"]
        rows = preferred_rows(summary[summary["prompt_set"] == place])
        # Rows of other distances come later in the config, as controls.
        neighbours = next(iter(rows["neighbours"].dropna()), None)
        options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
        return cls(rows, images[images["prompt_set"] == place], neighbours, options)

    def find(self, parts: Mapping[str, object], temperature: float = 1.0) -> pd.DataFrame:
        """Return the rows with these parts, and with the run's own neighbours unless the parts name others."""
        rows = self.rows[self.rows["temperature"] == temperature]
        for name, value in parts.items():
            rows = rows[rows[name] == value]
        # Exact methods have no neighbours.
        is_own = rows["neighbours"].isna() | (rows["neighbours"] == self.neighbours)
        return rows if "neighbours" in parts else rows[is_own]

    def ratio(self, first: pd.Series, second: pd.Series) -> Interval:
        """Return the ratio of the lengths of two rows, which may differ in temperature, paired by prompt."""
        columns = [stack_prompts(self._of(row), name) for row in (first, second) for name in _COUNTS]
        # (repeats, prompts) -> one flat resample, the one that has every image once.
        value = _ratio(*(column.reshape(1, -1) for column in columns))[0]
        return value, *bootstrap_interval(_ratio, *columns, **self.options)

    def change(self, first: pd.Series, second: pd.Series, column: str) -> Interval:
        """Return the mean difference of a column of the images, first minus second, paired by prompt."""
        values = stack_prompts(self._of(first), column) - stack_prompts(self._of(second), column)
        # Prompts without known attributes have no accuracy.
        values = values[:, np.isfinite(values).all(axis=0)]
        return float(values.mean()), *bootstrap_interval(mean_statistic, values, **self.options)

    def has(self, column: str) -> bool:
        return column in self.images and self.images[column].notna().any()

    def _of(self, row: pd.Series) -> pd.DataFrame:
        is_same = (self.images["method_id"] == row["method_id"]) & (self.images["temperature"] == row["temperature"])
        return self.images[is_same]


_COUNTS = ("num_tokens", "target_forwards")


def _ratio(tokens: np.ndarray, forwards: np.ndarray, other_tokens: np.ndarray, other: np.ndarray) -> np.ndarray:
    return tokens.sum(-1) / forwards.sum(-1) * other.sum(-1) / other_tokens.sum(-1)


def _ambiguous(run: _Run, ambiguity: pd.DataFrame) -> tuple[str, str, str, str]:
    # The largest scale is that of decoding; 1 is without guidance.
    guided = ambiguity[ambiguity["cfg_scale"] == ambiguity["cfg_scale"].max()]
    per_image = guided.groupby("image")["top1"].mean().to_numpy()
    top1 = (float(per_image.mean()), *bootstrap_interval(mean_statistic, per_image, **run.options))
    here = [f"top-1 probability {_text(top1)}"]
    shares = [top1]  # of which the claim says that each is below one half
    for _, row in run.find({"method": "eagle2_one"}).iterrows():
        # A tree of one draft emits 1 + accepted tokens a step, so length - 1 is about the share of accepted drafts.
        accepted = tuple(row[name] - 1 for name in with_ends("tokens_per_forward"))
        here.append(f"the draft model's best token is accepted in {_text(accepted, '.1f', 100)} % of steps")
        shares.append(accepted)
    verdict = IN_PART
    if all(high < 0.5 for *_, high in shares):
        verdict = HOLDS
    elif all(low > 0.5 for _, low, _ in shares):
        verdict = NOT
    published = "about 4 % of drafts accepted (LANTERN)"
    claim = "the target is unsure of the next token, so that exact decoding rejects most drafts"
    return claim, published, "; ".join(here), verdict


def _papers(run: _Run) -> Iterator[Row]:
    # Length at temperature 0 over length sampled: a ratio above 1 confirms the claim.
    greedy, sampled = run.find(EAGLE_2, 0.0), run.find(EAGLE_2)
    yield _larger(
        run,
        "EAGLE-2 gains less when tokens are sampled than at temperature 0",
        "0.93x and 1.29x in time (LANTERN); 1.20 to 1.22 tokens / forward sampled (VVS)",
        [(*pair, f"{_length(pair[1])} sampled, {_length(pair[0])} at 0: ratio") for pair in _pairs(greedy, sampled)],
    )
    for temperature, published, name in ((0.0, "1.75x", "at temperature 0"), (1.0, "1.82x", "sampled")):
        # At every delta that was run, with the largest k, which stands for the paper's 1,000 of 16,384 codes.
        lantern = _most_codes(run.find(LANTERN, temperature))
        yield _larger(
            run,
            f"LANTERN emits more than EAGLE-2 in the same tree, {name}",
            f"{published} in time (LANTERN)",
            [(*pair, f"δ {pair[0]['delta']:g}") for pair in _pairs(lantern, run.find(EAGLE_2, temperature))],
        )
    by_delta, by_k = _ends_of(run, "delta"), _ends_of(run, "k")
    yield _larger(
        run,
        "LANTERN emits more as δ and k grow, sampled",
        "yes (LANTERN)",
        [(*pair, f"{name} {pair[1][column]:g} to {pair[0][column]:g}") for name, column, pair in (*by_delta, *by_k)],
    )
    yield _larger(
        run,
        "dynamic trees stay shallow, static ones deepen: EAGLE-1 emits more than EAGLE-2, sampled",
        "2.42 and 1.22 tokens / forward (COOL-SD, VVS)",
        [
            (*pair, f"{_length(pair[0])} and {_length(pair[1])}: ratio")
            for pair in _pairs(run.find(EAGLE_1), run.find(EAGLE_2))
        ],
    )
    yield _larger(
        run,
        "LANTERN++ emits more than EAGLE-1 in the same tree, sampled",
        "1.10x: 2.67 and 2.42 tokens / forward (COOL-SD)",
        [(*pair, _k_lambda(pair[0])) for pair in _pairs(run.find(LANTERN_PP), run.find(EAGLE_1))],
    )
    for temperature, name in ((0.0, "at temperature 0"), (1.0, "sampled")):
        rows = run.find(LANTERN_PP, temperature)
        if len(rows):
            best = rows.loc[rows["tokens_per_forward"].idxmax()]
            # "Up to": the claim holds if 3.63 is not above the interval of the best row, and else in part.
            verdict = HOLDS if best["tokens_per_forward_high"] >= 3.63 else IN_PART
            here = f"{_length(best)} tokens / forward at {_k_lambda(best)}"
            yield f"LANTERN++ takes up to 3.63 times fewer steps, {name}", "3.63 (LANTERN++)", here, verdict


def _quality(run: _Run) -> Iterator[Row]:
    grown = [*_ends_of(run, "delta"), *_ends_of(run, "k")]
    if grown:
        parts, shown = [], []
        for name, column, (high, low) in grown:
            tv = [_text(tuple(row[end] for end in with_ends("tv_mean")), ".2f") for row in (low, high)]
            # TVs are of nodes, not of prompts, and cannot be paired: their intervals must not overlap.
            is_apart = high["tv_mean_low"] > low["tv_mean_high"]
            told, is_loss = _losses(run, high, low)
            shown += [is_apart, *is_loss]
            tvs = f"TV {tv[0]} to {tv[1]}"
            parts.append(f"{name} {low[column]:g} to {high[column]:g}: {', '.join([tvs, *told])}")
        yield "quality falls as δ and k grow, sampled", "yes (LANTERN)", "; ".join(parts), _verdict(shown)
    yield _same_order(run)
    yield _nearest_or_random(run)
    yield _divergences(run)
    # published_results.csv has no number of LANTERN at δ 0.1.
    yield _no_loss(
        run, LANTERN, "LANTERN at δ 0.1", "FID 24.88 to 24.97 and CLIP .3220 to .3223 at δ 0.3 (VVS)", {"delta": 0.1}
    )
    yield _no_loss(
        run, LANTERN_PP, "LANTERN++ at k 10, λ 5", "FID 20.97 to 21.17 over EAGLE-1, CLIP equal (COOL-SD)", RELEASED
    )


# Measures of images that a person would notice: column -> title. More is better.
_SHOWN = {"prompt_accuracy": "prompt accuracy", "clip_score": "CLIP score"}


def _losses(run: _Run, first: pd.Series, second: pd.Series) -> tuple[list[str], list[bool]]:
    """Return the change of each measure from the second row to the first as text, and whether it is a loss."""
    told, is_loss = [], []
    for column, title in _SHOWN.items():
        if run.has(column):
            change = run.change(first, second, column)
            factor, spec, unit = (100, "+.1f", " points") if column == "prompt_accuracy" else (1, "+.3f", "")
            told.append(f"{title} {_text(change, spec, factor)}{unit}")
            is_loss.append(change[2] < 0)  # the whole interval
    return told, is_loss


def _verdict(shown: Sequence[bool]) -> str:
    return HOLDS if all(shown) else IN_PART if any(shown) else NOT


def _no_loss(run: _Run, parts: Mapping[str, object], name: str, published: str, setting: Mapping[str, float]) -> Row:
    baseline, rows = run.find({"method": BASELINE}), _most_codes(run.find({**parts, **setting}))
    if rows.empty or baseline.empty:
        return None
    row, baseline = rows.iloc[0], baseline.iloc[0]
    told, is_loss = _losses(run, row, baseline)
    if not told:
        return None
    if not pd.isna(row["frechet_distance"]):
        told.append(f"Fréchet distance {baseline['frechet_distance']:.1f} to {row['frechet_distance']:.1f}")
    verdict = _verdict([not is_lost for is_lost in is_loss])
    return f"{name} loses no quality that is significant", published, ", ".join(told), verdict


def _same_order(run: _Run) -> Row:
    """Judge whether nearest codes by l2 and by l2_normalised, the claim's cosine, do the same."""
    other = "l2" if run.neighbours == "l2_normalised" else "l2_normalised"
    pairs = _same_setting(run.find({**LANTERN, "neighbours": other}), run.find(LANTERN))
    if not pairs:
        return None
    measures = ("target_forwards", "nll")
    changes = [[run.change(*pair, name) for name in measures] for pair in pairs]
    # For unit vectors, |a - b|^2 = 2 - 2 a b: the smallest distance is the largest cosine.
    if all(change == (0, 0, 0) for found in changes for change in found):
        here = "equal steps and NLL in every image, as unit vectors must give, which both order alike"
        return "nearest codes by l2 and by cosine do the same", "yes (LANTERN)", here, HOLDS
    here = "; ".join(f"steps per image {_text(steps, '+.2f')}, NLL {_text(nll, '+.2f')}" for steps, nll in changes)
    return "nearest codes by l2 and by cosine do the same", "yes (LANTERN)", here, IN_PART


def _nearest_or_random(run: _Run) -> Row:
    pairs = _same_setting(run.find({**LANTERN, "neighbours": "random"}), run.find(LANTERN))
    if not pairs:
        return None
    parts, shown = [], []
    for random, nearest in pairs:
        nll, ratio = run.change(random, nearest, "nll"), run.ratio(random, nearest)
        told, is_loss = _losses(run, random, nearest)
        # Worse means: higher NLL, lower accuracy and CLIP score.
        shown += [nll[1] > 0, *is_loss]
        words = [f"NLL {_text(nll, '+.2f')}", f"length {_text(ratio)}x", *told]
        parts.append(f"random at δ {random['delta']:g}: {', '.join(words)}")
    return "nearest codes are better than random ones", "yes (LANTERN)", "; ".join(parts), _verdict(shown)


def _divergences(run: _Run) -> Row:
    """Judge whether both bounds have the same NLL at equal length, over the curve of their deltas."""
    other = run.find({"acceptance": "jensen_shannon", "tree": DYNAMIC})
    usual = _most_codes(run.find(LANTERN))
    if len(other) < 2 or len(usual) < 2:
        return None
    is_compared = (run.images["temperature"] == 1) & (run.images["repeat"] == run.images["repeat"].iloc[0])
    images = run.images[is_compared]  # of one repeat, since a curve has one image per prompt
    curves = [images[images["method_id"].isin(rows["method_id"])] for rows in (other, usual)]
    found = compare_at_equal_length(*curves, **run.options)
    if found is None:
        return None
    change = (found["difference"], found["low"], found["high"])
    lengths = f"{found['shortest']:.2f} to {found['longest']:.2f} tokens / forward"
    verdict = HOLDS if change[1] <= 0 <= change[2] else IN_PART
    here = f"NLL {_text(change, '+.3f')} nats with JSD, at the same {lengths}"
    return "total variation and Jensen-Shannon divergence as bounds do the same", "yes (LANTERN)", here, verdict


def _ours(run: _Run) -> Iterator[Row]:
    for temperature, name in ((1.0, "sampled"), (0.0, "at temperature 0")):
        for parts, drafts in ((HYBRID, "hybrid_50"), (JACOBI, "jacobi_50, without a draft model,")):
            pairs = _pairs(run.find(parts, temperature), run.find(LANTERN_PP, temperature))
            yield _larger(
                run,
                f"ours: exact drafts of {drafts} emit more than LANTERN++ with 57, {name}",
                "–",
                [(*pair, f"{_length(pair[0])} to {_length(pair[1])} at {_k_lambda(pair[1])}: ratio") for pair in pairs],
            )
    for temperature, name in ((1.0, "sampled"), (0.0, "at temperature 0")):
        relaxed = run.find({"tree": "hybrid_50", "drafts": "hybrid"}, temperature)
        # Same tree and drafts, exact or not, so that relaxation is the only difference.
        relaxed = relaxed[relaxed["acceptance"] != "exact"]
        yield _larger(
            run,
            f"ours: relaxing the drafts of hybrid_50 emits more, {name}",
            "–",
            [
                (*pair, f"{_RELAXED[pair[0]['acceptance']]} {_length(pair[0])}: ratio")
                for pair in _pairs(relaxed, run.find(HYBRID, temperature))
            ],
        )


_RELAXED = {"multiplicative": "LANTERN++", "additive": "LANTERN"}


def _larger(run: _Run, claim: str, published: str, cases: Sequence[tuple[pd.Series, pd.Series, str]]) -> Row:
    """Judge whether the first row of every case has the larger length. A case ends with the words before its ratio."""
    if not cases:
        return None
    ratios = [run.ratio(first, second) for first, second, _ in cases]
    here = "; ".join(f"{words} {_text(ratio)}x" for (*_, words), ratio in zip(cases, ratios, strict=True))
    if all(low > 1 for _, low, _ in ratios):
        return claim, published, here, HOLDS
    return claim, published, here, NOT if all(high < 1 for *_, high in ratios) else IN_PART


def _pairs(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    return [(row, other) for _, row in first.iterrows() for _, other in second.iterrows()]


def _same_setting(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    names = ["k", "delta"]
    return [pair for pair in _pairs(first, second) if pair[0][names].tolist() == pair[1][names].tolist()]


def _most_codes(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["k"] == rows["k"].max()].sort_values("delta")


def _ends_of(run: _Run, column: str) -> list[tuple[str, str, tuple[pd.Series, pd.Series]]]:
    """Return [(symbol, column, (row of the largest value, row of the smallest))], or [] if there is one value.

    The other parameter is at its largest.
    """
    rows, other = run.find(LANTERN), {"delta": "k", "k": "delta"}[column]
    rows = rows[rows[other] == rows[other].max()].sort_values(column)
    if rows[column].nunique() < 2:
        return []
    return [({"delta": "δ", "k": "k"}[column], column, (rows.iloc[-1], rows.iloc[0]))]


def _k_lambda(row: pd.Series) -> str:
    return f"k {row['k']:g}, λ {row['lambda_']:g}"


def _length(row: pd.Series) -> str:
    return _text([row[name] for name in with_ends("tokens_per_forward")])


def _text(interval: Iterable[float], spec: str = ".2f", factor: float = 1) -> str:
    value, low, high = (f"{factor * number:{spec}}" for number in interval)
    return f"{value} [{low}, {high}]"
