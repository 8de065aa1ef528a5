"""Generation: load models, generate images of prompts, and keep records of how they were decoded."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from lantern.checkpoints.native import load_model
from lantern.checkpoints.target import load_target
from lantern.codebook import code_dtype
from lantern.decoding import Decoder
from lantern.decoding_state import DecodingModels, Generation
from lantern.io import load_tensors
from lantern.models.draft import DraftModel
from lantern.noise import ImageNoise
from lantern.prompts import Prompt
from lantern.records import GenerationRecords, concatenate_records, load_records, save_records
from lantern.text_encoders.base import TextEncoder

log = logging.getLogger(__name__)


def load_decoding_models(
    target: Path | str,
    draft: Path | str | None = None,
    table: Path | str | None = None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
) -> DecodingModels:
    """Loads models and prepares them for decoding: target, draft model (None for autoregressive or Jacobi decoding) and
    a file with the tensor "nearest_codes" (None without relaxation); weights are "float32" or "bfloat16".

    Raises:
        ValueError: a foreign or truncated file, or a draft model that does not fit the target.
    """
    number_format = getattr(torch, dtype)
    models = DecodingModels(load_target(target, number_format, device).prepare_for_decoding())
    if draft is not None:
        models.draft = load_model(draft, DraftModel, number_format, device).prepare_for_decoding()
        for name in ("dim", "vocab_size", "grid", "num_text_tokens"):
            expected, found = getattr(models.target.config, name), getattr(models.draft.config, name)
            if expected != found:
                raise ValueError(
                    f"{draft}: {name} should be {expected} as in {target}, found {found}; train the drafter again"
                )
    if table is not None:
        models.nearest_codes = load_nearest_codes(table, device)
    return models


def load_nearest_codes(path: Path | str, device: torch.device | str = "cpu") -> torch.Tensor:
    """Reads a table of nearest codes, (vocab, columns), in the whole numbers of `code_dtype`; a ValueError where the
    file holds none.
    """
    tensors, _ = load_tensors(path)
    if "nearest_codes" not in tensors:
        raise ValueError(f"{path} holds no tensor nearest_codes, found {sorted(tensors)}; name another file")
    table = tensors["nearest_codes"]
    return table.to(device, code_dtype(len(table)))


def generate_images(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    image_decoder: Callable[[torch.Tensor], torch.Tensor],
    run_seed: int = 0,
    batch_size: int = 16,
) -> tuple[GenerationRecords, torch.Tensor]:
    """Generate images of prompts; return their records and pixels, uint8 (images, size, size, 3) on the CPU.

    `image_decoder` turns codes, int64 (images, codes), into images in [-1, 1], (images, 3, size, size), as
    `VQ16.decode`; it gets one image at a time, since a large one takes a GiB.
    """
    records = generate_records(decoder, prompts, encoder, run_seed=run_seed, batch_size=batch_size)
    codes = decoder.target.config.image_codes(records.codes.long()).to(decoder.device)
    with torch.inference_mode():
        images = torch.cat([image_decoder(image).float().cpu() for image in codes.split(1)])
    pixels = ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return records, pixels.permute(0, 2, 3, 1).contiguous()


def generate_records(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    batch_size: int,
    partial: Path | None = None,
    partial_every_s: float = 30.0,
) -> GenerationRecords:
    """Generates an image of each prompt, `batch_size` at a time; records are in the order of the prompts.

    Where an image is complete, its row of the batch takes the next prompt, so that no row waits for the slowest; the
    result does not depend on it. Seconds are an image's share of the clock: images that run at the same time share it
    equally, prefills included, so that all of them add up to the time that decoding took. Excluded are text encoding
    and what noise had to be waited for; noise is made ahead, in threads beside decoding. First calls allocate and
    choose kernels, so draw an image that does not count first (`decode_timed`).

    `partial` is a file for the images finished so far, written every `partial_every_s` seconds: images in one that an
    interruption has left are not drawn again.
    """
    parts = [load_records(partial)] if partial is not None and partial.exists() else []
    finished = {id for part in parts for id in part.prompt_ids}
    if finished:
        log.info("%d of %d images were drawn by an interrupted job", len(finished), len(prompts))
    todo = [prompt for prompt in prompts if prompt.id not in finished]
    name, saved = f"{decoder.spec.method_id} T{decoder.sampling.temperature:g}", time.monotonic()
    with tqdm(total=len(todo), desc=name, unit="image", disable=None, mininterval=1.0) as progress:
        for drawn in _draw(decoder, todo, encoder, run_seed, batch_size):
            parts.append(_to_records(decoder, *drawn, run_seed, batch_size))
            progress.update(len(parts[-1]))
            if partial is not None and time.monotonic() - saved > partial_every_s:
                save_records(partial, concatenate_records(parts))
                saved = time.monotonic()
    return concatenate_records(parts, [prompt.id for prompt in prompts])


def _draw(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, run_seed: int, batch_size: int
) -> Iterator[tuple[list[Prompt], Generation, list[float]]]:
    """Images as they are completed, with their seconds; prompts are taken in groups, so that prefills stay batched."""
    num_rows = min(batch_size, len(prompts))
    state, group = decoder.runner.borrow(decoder.allocate, num_rows), max(1, num_rows // 8)
    running: dict[int, Prompt] = {}
    num_left = len(prompts)
    seconds = [0.0] * num_rows
    with closing(_with_noise(decoder, prompts, run_seed, num_rows)) as coming:
        while True:
            idle = [row for row in range(num_rows) if row not in running]
            taken = list(islice(coming, len(idle)))
            captions = encoder.encode([prompt.text for prompt, _ in taken]) if taken else None
            synchronise(decoder.device)
            begun = time.perf_counter()
            for row, (prompt, _) in zip(idle, taken, strict=False):
                running[row], seconds[row] = prompt, 0.0
            if not running:
                return
            if captions is not None:
                fields = [field for _, field in taken]
                for part in _refills(len(taken), decoder.device):
                    decoder.fill(state, idle[part], captions[0][part], captions[1][part], fields[part])
                del fields
            num_left -= len(taken)
            del taken  # with the noise, which the state holds now
            decoder.run(state, min(group, num_left) or num_rows)
            lengths = state.lengths.tolist()
            share = (time.perf_counter() - begun) / len(running)
            for row in running:
                seconds[row] += share
            complete = [row for row in running if lengths[row] == decoder.num_tokens]
            drawn = [running.pop(row) for row in complete]
            yield drawn, state.collect(complete), [seconds[row] for row in complete]


def _refills(num_prompts: int, device: torch.device) -> list[slice]:
    """Divide new prompts into groups that are filled together.

    On a GPU their sizes are powers of two, so that kernels and buffers are chosen for few sizes. Elsewhere all prompts
    are one group.
    """
    if device.type != "cuda":
        return [slice(0, num_prompts)]
    parts, begin = [], 0
    while begin < num_prompts:
        size = 1 << ((num_prompts - begin).bit_length() - 1)
        parts.append(slice(begin, begin + size))
        begin += size
    return parts


def _with_noise(
    decoder: Decoder, prompts: Sequence[Prompt], run_seed: int, num_ahead: int
) -> Generator[tuple[Prompt, ImageNoise], None, None]:
    """Prompts with their noise; threads make that of the next `num_ahead` before it is asked for."""
    pool = ThreadPoolExecutor(torch.get_num_threads())
    coming: deque[tuple[Prompt, Future[ImageNoise]]] = deque()
    try:
        for prompt in prompts:
            coming.append((prompt, pool.submit(decoder.make_noise, run_seed, prompt.id)))
            if len(coming) > num_ahead:
                first, noise = coming.popleft()
                yield first, noise.result()
        for prompt, noise in coming:
            yield prompt, noise.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _to_records(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    generation: Generation,
    seconds: Sequence[float],
    run_seed: int,
    batch_size: int,
) -> GenerationRecords:
    """Records of some images."""
    config, nodes = decoder.sampling, generation.accepted_nodes
    metadata = {
        "method": decoder.spec.to_dict(),
        "tree_shape": asdict(decoder.spec)["tree_shape"],
        "temperature": config.temperature,
        "cfg_scale": config.cfg_scale,
        "batch_size": batch_size,
        "stepping": decoder.runner.mode,
        "preparation_s": round(decoder.runner.preparation_s, 3),
        "num_threads": torch.get_num_threads(),
        "run_seed": run_seed,
        "device": str(decoder.device),
        "gpu": torch.cuda.get_device_name(decoder.device) if decoder.device.type == "cuda" else None,
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "torch": torch.__version__,
    }
    return GenerationRecords(
        [prompt.id for prompt in prompts],
        codes=generation.codes.int().cpu(),
        target_forwards=generation.target_forwards.int().cpu(),
        step_lengths=generation.step_lengths.short().cpu(),
        accepted_nodes=F.pad(nodes, (0, decoder.num_tokens - nodes.shape[1]), value=-1).short().cpu(),
        is_substituted=generation.is_substituted.cpu(),
        seconds=torch.tensor(seconds),
        margins=generation.margins.cpu(),
        metadata=metadata,
    )


def decode_timed(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, run_seed: int
) -> tuple[Generation, float]:
    """Draws one batch; returns it with its seconds, synchronised, text encoding and making the noise excluded."""
    features, mask = encoder.encode([prompt.text for prompt in prompts])
    fields = [decoder.make_noise(run_seed, prompt.id) for prompt in prompts]
    synchronise(decoder.device)
    begun = time.perf_counter()
    generation = decoder.generate(features, mask, fields)
    synchronise(decoder.device)
    return generation, time.perf_counter() - begun


def synchronise(device: torch.device | str) -> None:
    """Waits until a GPU has done all it was asked to do; on a CPU there is nothing to wait for."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
