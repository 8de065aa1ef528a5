"""LANTERN's premise: codes that are near in the codebook look alike, so one may be emitted instead of the other.

Two measurements test this premise, with nearest codes and with random codes as a control. The first replaces every code
of real images by one of k other codes, and scores the decoded images. The second adds the probabilities of k other
codes to that of a draft before the draft is verified. It measures how many more drafts are then accepted, and how far
the emitted tokens deviate from the target's distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from lantern.acceptance.rejection import Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound
from lantern.codebook import with_line_end
from lantern_pipeline.data.image_sources import ImageSource
from lantern_pipeline.measure.exactness.output_distribution import VerifiedNodes, distribution_of_one_sampled_draft
from lantern_pipeline.measure.exactness.total_variation import tv_row
from lantern_pipeline.measure.intervals import mean_with_interval
from lantern_pipeline.measure.quality.evaluate_images import (
    chunks,
    concatenate_scores,
    pixel_mse,
    score_decoded,
)
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.quality.quality_tables import compare_sets, make_references
from lantern_pipeline.measure.registry import IMAGES, metrics_over
from lantern_pipeline.schema.run_config import FidelitySettings

NONE = "none"  # codes that are not replaced
KEYS = ("neighbours", "k")  # columns that identify a row: the kind of other codes, and their number per code
SPLIT = "val"  # split of the real images


def replace_codes(codes: Tensor, table: Tensor, k: int, seed: int) -> Tensor:
    """Replace every code, (images, positions), by a random one of the first `k` codes in its row of a table."""
    columns = torch.randint(k, codes.shape, generator=torch.Generator().manual_seed(seed))
    return table[codes, columns.to(table.device)].long()  # a table has integers of 16 or 32 bits


@torch.inference_mode()
def score_replacements(
    source: ImageSource,
    models: MetricModels,
    tables: Mapping[str, Tensor],
    ks: Sequence[int],
    *,
    num_images: int,
    cfg_scale: float,
    fidelity: FidelitySettings,
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Measure the quality of held-out images whose codes are all replaced.

    There is one row per kind of other codes (a key of
    `tables`) and k. The first row, with kind NONE and k 0, has the unchanged codes, with whose images column pixel_mse
    compares. `options` are num_resamples and seed of the bootstrap, and the seed also determines the replacements.
    """
    prompts = source.prompts(SPLIT, num_images)
    batches = list(chunks(0, len(prompts), models.batch_size, "encode"))
    encoded = [models.tokenizer.encode(source.images(SPLIT, batch).to(models.device)) for batch in batches]
    codes = torch.cat(encoded).long()
    # Sets of images are compared with reconstructions of further images, from index len(prompts) on.
    references = make_references(source, models, SPLIT, len(prompts), fidelity)
    variants = {(NONE, 0): codes}
    for name, table in tables.items():
        variants |= {(name, k): replace_codes(codes, table, k, options["seed"]) for k in ks}
    rows, original = [], []
    # The unchanged codes come first, so `original` is complete when others are compared with it.
    for key, variant in variants.items():
        parts = []
        for place, batch in enumerate(batches):
            chosen = slice(batch.start, batch.stop)
            scores, pixels = score_decoded(variant[chosen], prompts[chosen], models, cfg_scale)
            if key[0] == NONE:
                original.append(pixels)
            scores.columns["pixel_mse"] = pixel_mse(pixels, original[place])
            parts.append(scores)
        found = concatenate_scores(parts)
        # A metric that the config switches off has no column.
        means = [
            mean_with_interval(metric.column, found.columns[metric.per_image].double().numpy(), **options)
            for metric in metrics_over(IMAGES)
            if metric.per_image in found.columns
        ]
        values = {name: value for part in means for name, value in part.items()}
        values |= compare_sets(found, references, fidelity, options["seed"])
        rows.append({**dict(zip(KEYS, key, strict=True)), "num_images": len(prompts), **values})
    return pd.DataFrame(rows)


@torch.inference_mode()
def relax_acceptance(
    nodes: VerifiedNodes,
    tables: Mapping[str, Tensor],
    ks: Sequence[int],
    deltas: Sequence[float],
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Measure what relaxing the acceptance of drafts gains and costs.

    Each node has one draft, sampled from the draft model, and LANTERN's acceptance. There is one row per kind of other
    codes and k. The first row, with kind NONE and k 0, has exact acceptance. For delta 0.1, column acceptance_0.1 is
    the mean probability that the draft is accepted, and tv_mean_0.1 the mean TV, with a 95 % interval over images.
    """
    # All rows are of the same nodes, which exact decoding visited, so that only the acceptance differs.
    target, draft = nodes.target_probs, nodes.drawn_from
    # Tokens that are no codes get rows, too, so that any draft can index a table.
    padded = {name: with_line_end(table, target.shape[1]) for name, table in tables.items()}
    rows = []
    for name, k in [(NONE, 0), *((name, k) for name in tables for k in ks)]:
        row: dict[str, object] = {"neighbours": name, "k": k}
        for delta in deltas:
            relaxed = Rejection(AdditiveBound(padded[name], k=k, delta=delta)) if k else Rejection()
            found = distribution_of_one_sampled_draft(target, draft, relaxed)
            values = tv_row(nodes, found, delta, options)
            row[f"acceptance_{delta:g}"] = float(found.acceptance.mean())
            row |= {f"tv_mean_{delta:g}{end}": values[f"tv_mean{end}"] for end in ("", "_low", "_high")}
        rows.append({**row, "num_nodes": len(target)})
    return pd.DataFrame(rows)


def mean_ambiguity(ambiguity: pd.DataFrame, cfg_scale: float) -> dict[str, float]:
    """Return the means of quality/ambiguity.csv at one guidance scale: top-1, top-10 and entropy in nats."""
    rows = ambiguity[ambiguity["cfg_scale"] == cfg_scale]
    return {f"target_{name}": float(rows[name].mean()) for name in ("top1", "top10", "entropy")}
