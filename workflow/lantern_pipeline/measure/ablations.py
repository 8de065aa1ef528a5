"""Ablations: how results change if one setting changes, such as the training steps of the draft model.

A *point* of an ablation is a method with one combination of sampling settings and draft model. It is compared with
autoregressive decoding at the same sampling settings and with the same noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd
from torch import Tensor

from lantern.decoding import Decoder, TreeDecoder, make_decoder
from lantern.generation import generate_records
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.measure.exactness.coupled_distribution import knows_drafts, measure_coupled_drafts
from lantern_pipeline.measure.exactness.losslessness import compare_with_autoregressive
from lantern_pipeline.measure.exactness.output_distribution import mean_over_nodes
from lantern_pipeline.measure.intervals import mean_with_interval
from lantern_pipeline.measure.quality.evaluate_images import ImageScores, score_records
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.registry import IMAGES, metrics_over
from lantern_pipeline.measure.speed.speedups import BASELINE, tokens_per_forward
from lantern_pipeline.schema.methods import AblationPoint
from lantern_pipeline.schema.run_config import TotalVariationNodes

# Columns of the image table of which means are compared: numbers of one image alone, other than yes or no.
PER_IMAGE = tuple(metric.per_image for metric in metrics_over(IMAGES) if not (metric.is_yes_no or metric.is_distance))


@dataclass(frozen=True)
class AblationStudy:
    """Models, prompts and settings that all points share.

    Attributes:
        models: training steps of the draft model -> models for decoding. Key None has the draft model of the run, or no
            draft model if no point needs one.
        tables: distance that defines nearest codes (`MethodSpec.neighbours`) -> nearest codes, int64 (vocab, columns).
        cross_entropy: cross-entropy of the target on held-out images, in nats per token. None if unknown.
        seed: random seed of the noise and of the bootstrap.
        stepping: how decoding steps run: "auto", "eager" or "graph" (a CUDA graph).
    """

    models: Mapping[int | None, DecodingModels]
    tables: Mapping[str, Tensor]
    measuring: MetricModels
    cross_entropy: float | None
    prompts: Sequence[Prompt]
    total_variation: TotalVariationNodes
    bootstrap_resamples: int
    batch_size: int
    seed: int
    stepping: str = "auto"

    def run(self, name: str, points: Sequence[AblationPoint]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Generate images at every point of the ablation `name`, and measure them.

        Autoregressive decoding must be among the points of each combination of sampling settings.

        Returns:
            (rows, images). `rows` has one row per point, with means and 95 % intervals over prompts. Its column
            nll_change is the negative log-likelihood (nll), minus that of the autoregressive image of the same prompt.
            `images` has one row per point and prompt.
        """
        groups: dict[tuple, list[AblationPoint]] = {}
        for point in points:
            # Points with equal sampling settings share the autoregressive images with which they are compared.
            groups.setdefault((point.temperature, *point.sampling.items()), []).append(point)
        rows, images = [], []
        for group in groups.values():
            records = {self._key(point): self._draw(point) for point in group}
            baseline = records[BASELINE]
            scores = score_records(records, self.prompts, self.measuring)
            baseline_nll = scores[BASELINE].columns["nll"].numpy()
            for point, (key, record) in zip(group, records.items(), strict=True):  # the dict has the group's order
                head, frame = {"ablation": name, **self._identity(point)}, self._to_frame(record, scores[key])
                values = self._summarise(frame.assign(nll_change=frame["nll"] - baseline_nll))
                equality = compare_with_autoregressive(record.codes, baseline.codes, baseline.margins)
                share = {"tokens_equal_autoregressive": equality.share_equal}
                rows.append({**head, **values, **self._total_variation(point), **share})
                images.append(frame.assign(**head)[[*head, *frame.columns]])
        return pd.DataFrame(rows), pd.concat(images, ignore_index=True)

    @staticmethod
    def _key(point: AblationPoint) -> str:
        # An ablation may measure one method with several draft models. Else the key is the id, as BASELINE.
        return point.spec.method_id + (f" {point.drafter_steps}" if point.drafter_steps is not None else "")

    def _make_decoder(self, point: AblationPoint) -> Decoder:
        spec, sampling = point.spec, SamplingConfig(temperature=point.temperature, **point.sampling)
        models = self.models[point.drafter_steps]
        models = replace(models, nearest_codes=self.tables.get(spec.neighbours or ""))
        # Margins tell near-ties, and only those of autoregressive decoding are read.
        return make_decoder(models, spec, sampling, records_margins=spec.drafts is None, stepping=self.stepping)

    def _total_variation(self, point: AblationPoint) -> dict[str, float]:
        # Exact methods have TV 0, temperature 0 samples nothing, and distributions of other drafts are not known here.
        if not (not point.spec.is_exact and point.temperature > 0 and knows_drafts(point.spec)):
            return dict.fromkeys(("tv_mean", "tv_mean_low", "tv_mean_high"), np.nan)
        settings = self.total_variation
        prompts = self.prompts[: settings.num_images]
        # Generates the first images again, with a decoder that keeps the distributions of its drafts.
        nodes, _, found = measure_coupled_drafts(
            cast("TreeDecoder", self._make_decoder(point)),  # `knows_drafts` is true only for methods with draft trees
            prompts,
            self.measuring.text_encoder,
            run_seed=self.seed,
            max_nodes=settings.max_nodes,
            batch_size=self.batch_size,
            num_samples=settings.num_samples,
        )
        options = {"num_resamples": self.bootstrap_resamples, "seed": self.seed}
        tv = found.tv_from(nodes.target_probs).cpu()
        # Monte Carlo noise makes a TV too large, so only the lower end allows for it.
        return mean_over_nodes("tv_mean", tv, nodes.image.cpu(), options, ((tv - found.error.cpu()).clamp(min=0), tv))

    def _draw(self, point: AblationPoint) -> GenerationRecords:
        return generate_records(
            self._make_decoder(point),
            self.prompts,
            self.measuring.text_encoder,
            run_seed=self.seed,
            batch_size=self.batch_size,
        )

    def _to_frame(self, record: GenerationRecords, scores: ImageScores) -> pd.DataFrame:
        columns = {
            "prompt_id": record.prompt_ids,
            "num_tokens": record.codes.shape[1],
            "target_forwards": record.target_forwards.numpy(),
            "substitutions": record.substitutions.numpy(),
            **{name: scores.columns[name].cpu().numpy() for name in PER_IMAGE if name in scores.columns},
        }
        return pd.DataFrame(columns)

    def _summarise(self, frame: pd.DataFrame) -> dict[str, float]:
        options = {"num_resamples": self.bootstrap_resamples, "seed": self.seed}
        forwards = (frame["num_tokens"].to_numpy(int), frame["target_forwards"].to_numpy(int))
        values = {"num_images": len(frame), **tokens_per_forward(*forwards, **options)}
        for name in (*PER_IMAGE, "nll_change", "substitutions"):
            if name in frame:  # the metric may be switched off
                values |= mean_with_interval(name, frame[name].to_numpy(float), **options)
        rate = (frame["substitutions"] / frame["num_tokens"]).to_numpy(float)
        return values | mean_with_interval("substitution_rate", rate, **options)

    def _identity(self, point: AblationPoint) -> dict[str, Any]:
        return {
            **method_columns(point.spec.to_dict()),
            "temperature": point.temperature,
            **point.sampling,
            "drafter_steps": point.drafter_steps,
            "target_cross_entropy": self.cross_entropy,
        }
