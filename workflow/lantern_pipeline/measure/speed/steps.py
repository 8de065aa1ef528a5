"""Time of single decoding steps, without generating whole images, at batch 1 and at a chosen batch size.

`lantern bench --random-weights` and `make gpu-check` use this module. The time of a step does not depend on the number
of accepted drafts, so random weights are good enough. Steps read all slots of the key/value cache, as the last steps of
an image do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.prompts import TextEncoder
from lantern.state import DecodingState
from lantern.stepping import without_cudnn_attention
from lantern.tree_shapes import num_drafts
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.speed.bench import Row
from lantern_pipeline.measure.speed.clocks import Timing, time_blocks
from lantern_pipeline.measure.speed.memory import peak_gib, reset_peak
from lantern_pipeline.measure.speed.speedups import BASELINE

NUM_STEPS = 16  # number of decoding steps that are timed as one block
WARM_UP_S = 0.2


@torch.inference_mode()
def fill(decoder: Decoder, encoder: TextEncoder, batch_size: int) -> DecodingState:
    """Run the prefill of a batch of empty prompts. Return the decoding state from which steps can be timed."""
    # All images share the noise of one image, because noise takes long to make.
    state, noise = decoder.allocate(batch_size), decoder.make_noise(0, "0")
    decoder.fill(state, range(batch_size), *encoder.encode([""] * batch_size), [noise] * batch_size)
    return state


@torch.inference_mode()
@without_cudnn_attention()
def run_step(decoder: Decoder, state: DecodingState) -> None:
    """Run one step without cuDNN's attention, as `Decoder.run` does, which also limits the slots that are read."""
    graph = state.graphs.get(state.cache.num_used)
    if graph is None:
        decoder.step(state)
    else:
        graph.replay()


def step_rounds(
    decoders: Sequence[Decoder], encoder: TextEncoder, *, batch_size: int, num_rounds: int
) -> Iterator[list[Row]]:
    """Time the steps of several decoders, one per method, and yield a summary of all rounds so far after each round.

    A round times one block of steps per decoder at batch 1, and then one block with a batch. The first decoder must be
    autoregressive decoding. There is one dict per decoder:

    - method: dict from `MethodSpec.to_dict`,
    - num_drafts: number of drafts of a step,
    - forward_s, batch_forward_s: time of a step in seconds at batch 1 and of a batch, with drafting and verification,
    - relative_step_cost: forward_s divided by that of autoregressive decoding in the same round,
    - peak_memory_gib: highest peak memory of a batch.

    Times and costs are medians over rounds. forward_s_low and forward_s_high are the lowest and the highest round, as
    are relative_step_cost_low and relative_step_cost_high.
    """
    if decoders[0].spec.method_id != BASELINE:
        raise ValueError(f"the first decoder must be {BASELINE}, got {decoders[0].spec.method_id}; sort the decoders")
    states = [fill(decoder, encoder, 1) for decoder in decoders]
    single: list[list[float]] = [[] for _ in decoders]
    batched: list[list[float]] = [[] for _ in decoders]
    peaks = [0.0 for _ in decoders]
    with tqdm(total=num_rounds * len(decoders), desc="steps", unit="block", disable=None) as progress:
        for _ in range(num_rounds):
            # Decoders take turns, so that slow changes in the machine's speed affect all of them equally.
            for index, (decoder, state) in enumerate(zip(decoders, states, strict=True)):
                single[index].append(_time_block(decoder, state))
                seconds, peak = _time_batch(decoder, encoder, batch_size)
                batched[index].append(seconds)
                peaks[index] = max(peaks[index], peak)
                progress.update()
            yield [
                {
                    "method": decoder.spec.to_dict(),
                    "num_drafts": num_drafts(decoder.spec.tree_shape),
                    **_with_ends("forward_s", single[index]),
                    # Divided round by round: both steps of a round found the machine in the same state.
                    **_with_ends("relative_step_cost", [a / b for a, b in zip(single[index], single[0], strict=True)]),
                    "batch_forward_s": Timing.of(batched[index]).median,
                    "peak_memory_gib": peaks[index],
                }
                for index, decoder in enumerate(decoders)
            ]


def _time_block(decoder: Decoder, state: DecodingState) -> float:
    step = partial(run_step, decoder, state)
    return time_blocks(step, decoder.device, NUM_STEPS, num_blocks=1, warm_up_s=WARM_UP_S).median


def _time_batch(decoder: Decoder, encoder: TextEncoder, batch_size: int) -> tuple[float, float]:
    """Return the seconds of a step of a batch, and the peak memory in GiB."""
    # A copy, so that the decoder itself keeps no memory for this batch size.
    job = decoder.stepped(decoder.runner.mode)
    reset_peak(job.device)
    seconds = _time_block(job, fill(job, encoder, batch_size))
    return seconds, peak_gib(job.device)


def _with_ends(name: str, values: list[float]) -> dict[str, float]:
    return dict(zip(with_ends(name), Timing.of(values), strict=True))  # both in the order value, low, high
