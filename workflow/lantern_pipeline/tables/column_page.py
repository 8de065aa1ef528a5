"""The page docs/columns.md: every column of the published tables, with its name, title, unit and meaning.

After a change of this table, METRICS or PARAMETERS, run `PYTHONPATH=workflow python -m
lantern_pipeline.tables.column_page` in the clone. A test fails if a published table has a column that the page lacks.

Titles and units of metrics are those of METRICS. Their meanings stand here and not there, so that an edit of a sentence
runs no job again.
"""

from __future__ import annotations

from pathlib import Path

from lantern.parameters import PARAMETERS
from lantern_pipeline.measure.registry import METRICS
from lantern_pipeline.tables.markdown import OF_METHOD, OF_TARGET

PAGE = Path(__file__).resolve().parents[3] / "docs" / "columns.md"
_HEADER = """\
# Columns of the tables

The columns of [results.csv](results.csv), of the other CSV files beside it except premise.csv, and of `summary.csv` in
`results/<experiment>/`. The *display name* is that in tables and figures. The [glossary](glossary.md) has the terms.

- `x_low` and `x_high` are the ends of the 95 % interval of column `x`. It is bootstrapped over prompts and, if there
  are several, over repeats and rounds of timing. Shares of images have exact binomial intervals. Distances between sets
  of images, precision and recall have none.
- `x_change` is `x` minus its value in autoregressive decoding, prompt by prompt, as a mean over prompts.
- A share is a number from 0 to 1. Display names with "%" show 100 times the number.
- An empty cell was not measured, or does not apply to the row.
- `tokens_per_forward` was called `mean_accepted_length` before version 1.0. `lantern predict --bench` and the workflow
  still read files with that name.

<!-- Made by `python -m lantern_pipeline.tables.column_page` from its MEANINGS and from METRICS and PARAMETERS. -->
"""
_TABLE = "\n| column | display name | unit | meaning |\n|---|---|---|---|\n"
PARTS, OPTIONS, RUN, SPEED, OUTPUT, QUALITY, EQUALITY, TARGETS, MACHINES = (
    "Method",
    "Parameters of the method",
    "Run",
    "Speed",
    "Output distribution",
    "Quality",
    "Compared with autoregressive decoding",
    "Only in tables of several targets",
    "Only in machines.csv",
)
# Group -> column -> meaning
MEANINGS: dict[str, dict[str, str]] = {
    PARTS: {
        "label": "the method's name for readers, with the parts and parameters that differ from its preset",
        "method_id": "the method's name in file names, unique within a run",
        "method": "preset of the method; `real` and `reconstruction` are rows of images that no method generated",
        "tree": "name of the draft tree, or of both trees of hybrid drafts, as in `chain9+chain3`",
        "drafts": "where drafts come from, such as `sampled` or `jacobi` ([methods](methods.md))",
        "acceptance": "rule that accepts or rejects a draft, such as `exact` or `additive` ([methods](methods.md))",
        "residual": "distribution that replaces the target's after a rejected draft; `paper` is as in the paper",
        "neighbours": "distance that defines the nearest codes, such as `l2_normalised`",
        "is_exact": "whether the method is exact by construction: it keeps the target's distribution",
    },
    OPTIONS: {name: parameter.meaning for name, parameter in PARAMETERS.items()},
    RUN: {
        "temperature": "temperature of sampling; 0 takes the most probable token",
        "cfg_scale": "scale of classifier-free guidance; 1 is off",
        "dtype": "number format of the target and the draft model",
        "prompt_set": "prompts of the row; the default run draws `seen` and `unseen` from its dataset",
        "repeat": "training seed and noise seed, as in `s0n0`; `pooled` combines all repeats",
        "num_images": "number of images, over all repeats of the row",
        "num_repeats": "number of repeats of the row",
        "target_cross_entropy": "cross-entropy of the target on held-out images. The weaker the target, the larger any "
        "speed-up",
        "target_prompt_accuracy": "prompt accuracy of autoregressive decoding for the same prompts",
    },
    SPEED: {
        "tokens_per_forward": "tokens emitted per forward pass of the target, with bonus tokens and the prefill; 1 for "
        "autoregressive decoding. No speed-up can exceed it",
        "relative_step_cost": "time of a step (forward pass, drafting and verification), divided by that of a step of "
        "autoregressive decoding, at batch 1 on `machine`",
        "latency_s": "time of an image at batch 1, in each prompt's fastest round, as a mean over prompts",
        "speedup": "time of autoregressive decoding divided by that of the method, at batch 1, summed over prompts: "
        "`tokens_per_forward / relative_step_cost` of the timed images",
        "speedup_cpu": "speed-up in CPU seconds of the process in place of wall-clock time",
        "speedup_eager": "speed-up if both ran eagerly; empty unless the timed steps ran as CUDA graphs",
        "stepping": "how the timed steps ran: `eager`, or `graph` for CUDA graphs",
        "num_timed": "number of timed prompts, over all repeats of the row",
        "busy_elsewhere": "mean number of cores that other processes kept busy during the timing",
        "machine": "processor that was timed",
    },
    OUTPUT: {
        "nll": "negative log-likelihood of the generated tokens under the target with guidance, at temperature 1. It "
        "is the most sensitive sign of another distribution. Lower is not better",
        "tv_mean": "total variation between the distributions of the emitted token and of the target's, as a mean over "
        "verified nodes. In tables, ≤ marks `substitution_rate` in its place",
        "tv_p95": "95 % quantile of the total variation over nodes",
        "tv_max": "largest total variation of a node",
        "tv_share_above_delta": "share of nodes whose total variation is above the method's `delta`",
        "monte_carlo_error": "error of `tv_mean` by sampling, on average; 0 if the distribution was enumerated",
        "substitutions": "emitted tokens that differ from the target's sample, as a mean over images. Rejection "
        "sampling has no such count",
        "substitution_rate": "share of emitted tokens that differ from the target's sample: an upper bound of TV, "
        "0 for exact drafts that share the target's noise",
        "substitution_distance": "distance between the code vectors of the emitted token and of the target's sample, "
        "as a mean over substitutions",
        "law_p": "p-value of a chi-square test of whole images against the target's distribution "
        "([formula](methods.md)). If the distributions are equal, one in twenty is below 0.05",
    },
    QUALITY: {
        "prompt_accuracy": "share of the prompt's attributes that the attribute classifier reads from the image",
        "all_correct": "share of images in which the classifier reads every attribute",
        "clip_score": "cosine similarity of image and prompt under a CLIP model, trained by the run or published",
        "clip_num_cut": "number of prompts that the CLIP model does not read to their end",
        "hps": "Human Preference Score v2.1; the authors print 100 times this",
        "hps_num_cut": "number of prompts that the model of HPS does not read to their end",
        "fid": "Fréchet distance of Inception's features from those of real images",
        "kid": "kernel distance of Inception's features from those of real images",
        "frechet_distance": "formula of FID on features of the attribute classifier, from reconstructions of held-out "
        "images. Compare within one table only",
        "kernel_distance": "formula of KID on the features and images of `frechet_distance`; may be below 0 by chance",
        "precision": "share of generated images that are nearer to a reference image than its k-th nearest neighbour "
        "is (`metrics.prc_neighbours`), by features of the classifier or of VGG16",
        "recall": "precision with generated and reference images exchanged",
        "efficientnet_frechet_distance": "formula of FID on features of EfficientNet-lite0, which others trained on "
        "photographs, from the reconstructions. Measured if `metrics.efficientnet` is true",
        "efficientnet_kernel_distance": "formula of KID on these features",
        "efficientnet_precision": "precision on these features",
        "efficientnet_recall": "recall on these features",
    },
    EQUALITY: {
        "tokens_equal_autoregressive": "share of images whose tokens all equal those of autoregressive decoding with "
        "the same noise, without the images of `num_near_ties`",
        "num_near_ties": "images that first differ where rounding may decide: two keys are less than 0.0001 apart",
        "margin_at_difference": "difference of the two largest keys of autoregressive decoding at the first token that "
        "differs, as a median over images",
    },
    TARGETS: {
        "target": "name of the target, an entry of `variants`; `base` is that of the run",
        "grid_side": "side of the grid of codes",
        "differs": "config keys that differ from those of the base",
        "top1": "probability of the most probable token under the guided target, at temperature 1 without filters, as "
        "a mean over held-out images",
        "top10": "total probability of the ten most probable tokens, likewise",
        "gain": "`tokens_per_forward` divided by that of the exact method with the same drafts and tree",
        "gain_over": "`method_id` of that exact method",
        "made_by": "version, commit and machine that made the row",
    },
    MACHINES: {
        "processor": "name of the processor, as the system reports it",
        "threads": "number of threads of PyTorch",
        "torch": "version of PyTorch",
        "load_average": "jobs that ran or waited in the minute before the timing, over all cores",
    },
}
# Units of columns that are no metric.
_UNITS = {
    **dict.fromkeys(("num_images", "num_near_ties"), "images"),
    **dict.fromkeys(("num_timed", "clip_num_cut", "hps_num_cut"), "prompts"),
    **dict.fromkeys(("tv_p95", "tv_max", "monte_carlo_error"), "share of probability"),
    **dict.fromkeys(("speedup_cpu", "speedup_eager"), "times autoregressive decoding"),
    **dict.fromkeys(("top1", "top10"), "probability"),
    "busy_elsewhere": "cores",
    "gain": "times the exact method",
    "grid_side": "codes",
    "margin_at_difference": "nats",
    "num_repeats": "repeats",
    "substitution_distance": "length of code vectors",
    "substitution_rate": "share of tokens",
    "target_cross_entropy": "nats per token",
    "target_prompt_accuracy": "share of attributes",
    "tv_share_above_delta": "share of nodes",
}


def column_page() -> str:
    """Return what docs/columns.md should hold. A test compares."""
    parts = []
    for group in MEANINGS:
        lines = "".join(f"| {' | '.join(row)} |\n" for row in rows_of(group))
        parts.append(f"\n## {group}\n{_TABLE}{lines}")
    return _HEADER + "".join(parts)


def rows_of(group: str) -> list[tuple[str, str, str, str]]:
    """Return the lines of a group of MEANINGS: (column, title, unit, meaning)."""
    metrics = {metric.column: metric for metric in METRICS}
    titles = {name: title for table in (OF_METHOD, OF_TARGET) for name, (title, *_) in table.items()}
    titles |= {name: parameter.symbol for name, parameter in PARAMETERS.items()} | {"label": "method"}
    titles |= {name: metric.title for name, metric in metrics.items()}
    units = _UNITS | {name: metric.unit for name, metric in metrics.items()}
    return [(f"`{name}`", titles.get(name, ""), units.get(name, ""), text) for name, text in MEANINGS[group].items()]


def main() -> None:
    """Overwrite the page."""
    PAGE.write_text(column_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
