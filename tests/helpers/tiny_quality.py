"""Tiny models and records of images, for tests of quality metrics."""

from __future__ import annotations

from dataclasses import asdict

import torch

from lantern.methods import make_method
from lantern.models.target import TargetConfig, TargetModel
from lantern.records import GenerationRecords
from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.quality.evaluate_images import score_method
from lantern_pipeline.measure.quality.quality_tables import measure_quality
from lantern_pipeline.schema.run_config import FidelitySettings

NUM, TOKENS, VOCAB = 6, 16, 32
SETTINGS = FidelitySettings(num_reference=8, kid_subset_size=4, kid_subsets=2, prc_neighbours=1)
OPTIONS = {"settings": SETTINGS, "prompt_set": "seen", "split": "seen", "repeat": "s0n0", "seed": 0}
BASELINE = make_method("autoregressive")
EXACT = make_method("coupled", tree="chain3")
RELAXED = make_method("proximity", tree="chain3", neighbours="l2", k=5, method_id="proximity-k5")
REJECTED = make_method("lantern_pp", tree="chain3", neighbours="l2", k=5, lambda_=2.0, method_id="pp")


def make_parts(vocabulary=None):
    """Return a tiny image tokenizer, a target model and a text encoder, as fields of `MetricModels`.

    Args:
        vocabulary: words of the text encoder; None for any words.
    """
    torch.manual_seed(0)
    sizes = {"num_text_tokens": 16, "caption_dim": 8, "ffn_multiple": 8}
    target = TargetConfig(dim=16, num_layers=1, num_heads=2, vocab_size=VOCAB, grid=4, **sizes)
    tokenizer = TokenizerConfig(grid=4, codebook_size=VOCAB, encoder_width=8, decoder_width=8, decoder_blocks=1)
    return {
        "tokenizer": ImageTokenizer(tokenizer).eval(),
        "target_model": TargetModel(target).eval(),
        "text_encoder": WordEmbeddingEncoder(vocabulary, 8, 16),
        "batch_size": 4,
    }


def make_records(codes, spec, prompts):
    """Return the records of a method with given codes, (prompts, tokens).

    All methods but `autoregressive` have half as many forward passes as tokens.
    """
    num, is_slow = len(prompts), spec.name == "autoregressive"
    return GenerationRecords(
        prompt_ids=[prompt.id for prompt in prompts],
        codes=codes.int(),
        target_forwards=torch.full((num,), TOKENS if is_slow else TOKENS // 2, dtype=torch.int32),
        step_lengths=torch.ones(num, TOKENS, dtype=torch.int16),
        accepted_nodes=torch.zeros(num, TOKENS, dtype=torch.int16),
        is_substituted=torch.zeros(num, TOKENS, dtype=torch.bool),
        seconds=torch.ones(num),
        margins=torch.ones(num, TOKENS if is_slow else 0),
        metadata={
            "method": spec.to_dict(),
            "tree_shape": asdict(spec)["tree_shape"],
            "temperature": 1.0,
            "cfg_scale": 3.0,
            "dtype": "float32",
        },
    )


def score_all(records, prompts, models):
    """Score the images of all methods, as the jobs of the pipeline do: method id -> scores."""
    baseline = records["autoregressive"]
    return {name: score_method(record, baseline, prompts, models) for name, record in records.items()}


def measure(records, prompts, source, models, **options):
    """Score every method and measure its quality, as the jobs of a prompt set do.

    Returns:
        (one row per method, one row per image).
    """
    return measure_quality(records, score_all(records, prompts, models), prompts, source, models, **options)
