"""Latency at batch 1: every method draws the same prompts in turn, so that a drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.generation import decode_timed
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt

COLUMNS = ["method_id", "temperature", "prompt_id", "seconds", "target_forwards"]


def measure_latency(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, num_warmup: int
) -> pd.DataFrame:
    """Times decoders image by image, interleaved.

    The order of the decoders is turned by one place from image to image, so that none profits from its neighbour.

    Args:
        decoders: methods at their temperatures.
        prompts: drawn once by each decoder, at batch 1.
        encoder: of prompts.
        run_seed: seed of the noise fields.
        num_warmup: images per decoder that are drawn first and not counted.

    Returns:
        One row per decoder and prompt: method_id, temperature, prompt_id, seconds (text encoding, noise and image
        decoding excluded), target_forwards.
    """
    rows = []
    for turn in tqdm(range(-num_warmup, len(prompts)), desc="latency", unit="image of each method", disable=None):
        prompt = prompts[turn % len(prompts)]
        for place in range(len(decoders)):
            decoder = decoders[(place + turn) % len(decoders)]
            generation, seconds = decode_timed(decoder, [prompt], encoder, run_seed)
            if turn >= 0:
                method_id, temperature = decoder.spec.method_id, decoder.sampling.temperature
                rows.append((method_id, temperature, prompt.id, seconds, int(generation.target_forwards[0])))
    return pd.DataFrame(rows, columns=COLUMNS)
