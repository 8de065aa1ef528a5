"""Generation of images: loading models, generating an image per prompt, and recording how each was decoded."""

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

from lantern.checkpoints.heads import load_heads
from lantern.checkpoints.target import load_target
from lantern.codebook import code_dtype
from lantern.decoding import Decoder
from lantern.decoding_state import DecodingModels, Generation
from lantern.finite import check_finite
from lantern.io import load_tensors
from lantern.models.draft import DraftModel
from lantern.models.stored import StoredModel, load_model
from lantern.models.target import Target
from lantern.noise import ImageNoise
from lantern.prompts import Prompt
from lantern.records import GenerationRecords, concatenate_records, load_records, save_records
from lantern.text_encoders.base import TextEncoder

log = logging.getLogger(__name__)

# A sound drafter has far more than this number of drafts accepted per step. Zero or foreign weights have fewer.
FEW_ACCEPTED = 0.1
LEAST_DRAFTS = 150  # fewer drafts are too few to tell


def load_decoding_models(
    target: Path | str,
    draft: Path | str | None = None,
    table: Path | str | None = None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    heads: Path | str | None = None,
) -> DecodingModels:
    """Load models and prepare them for decoding.

    Args:
        draft: file of the draft model. None for methods that need none, such as Jacobi decoding.
        table: file with the tensor "nearest_codes". None for exact methods.
        dtype: dtype of the weights, "float32", "bfloat16" or "float16".
        heads: file of shift heads or a state head. None for methods that need none.

    Raises:
        ValueError: a file is truncated or of the wrong kind, or its sizes differ from the target's.
    """
    torch_dtype = getattr(torch, dtype)
    models = DecodingModels(load_target(target, torch_dtype, device).prepare_for_decoding())
    if draft is not None:
        models.draft = load_model(draft, DraftModel, torch_dtype, device).prepare_for_decoding()
        # A draft model reads the target's hidden states, and uses its head, its prompts and its grid.
        names = ("dim", "vocab_size", "grid", "columns", "num_text_tokens")
        _check_sizes(models.draft, draft, models.target, target, names)
    if heads is not None:
        models.parts["heads"] = part = load_heads(heads, torch_dtype, device)
        _check_sizes(part, heads, models.target, target, ("dim", "line_width"))
    if table is not None:
        models.nearest_codes = load_nearest_codes(table, device)
    return models


def _check_sizes(
    model: StoredModel, path: Path | str, target: Target, target_path: Path | str, names: Sequence[str]
) -> None:
    """Raise a ValueError if a size of a drafting model differs from its target's."""
    for name in names:
        expected = getattr(target.config, name)
        found = getattr(model.config, name)
        if expected != found:
            raise ValueError(
                f"{path}: {name} should be {expected} as in {target_path}, found {found}; train it again for this "
                "target"
            )


def load_nearest_codes(path: Path | str, device: torch.device | str = "cpu") -> torch.Tensor:
    """Load the tensor "nearest_codes" of a safetensors file: integers (vocab, columns), nearest first.

    Raises:
        ValueError: the file has no such tensor.
    """
    tensors, _ = load_tensors(path)
    if "nearest_codes" not in tensors:
        raise ValueError(f"{path} holds no tensor nearest_codes, found {sorted(tensors)}; name another file")
    table = tensors["nearest_codes"]
    # A file may hold wider integers.
    return table.to(device, code_dtype(len(table)))


def generate_images(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    image_decoder: Callable[[torch.Tensor], torch.Tensor],
    run_seed: int = 0,
    batch_size: int = 16,
) -> tuple[GenerationRecords, torch.Tensor]:
    """Generate an image of each prompt.

    Args:
        image_decoder: turns codes, int64 (images, lines, columns), into pixels in [-1, 1], (images, 3, height, width).
        run_seed: seed of the noise.
        batch_size: number of images that are decoded together.

    Returns:
        (records; pixels, uint8 (images, height, width, 3) on the CPU).

    Raises:
        FloatingPointError: an output of the text encoder, of the target, of the draft model or of the image decoder is
            not finite. The message names it and the prompt.
    """
    records = generate_records(decoder, prompts, encoder, run_seed=run_seed, batch_size=batch_size)
    codes = decoder.target.config.code_grids(records.codes.long()).to(decoder.device)
    with torch.inference_mode():
        # One image at a time, because decoding a large image takes a GiB of memory.
        images = torch.cat([image_decoder(image).float().cpu() for image in codes.split(1)])
    check_finite(images, [f"prompt {id}" for id in records.prompt_ids], "pixels", "the image tokenizer")
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
    """Generate the tokens of an image for each prompt, and record how they were decoded.

    When an image is complete, the next prompt takes its row of the batch, so that no row waits for the slowest image.
    The tokens of an image are the same in any batch.

    Images that run at the same time share the decoding time equally, including prefills. For example, if two images run
    together for 3 s, each gets 1.5 s. The times of all images add up to the decoding time, without text encoding and
    without waiting for noise. The first call in a process also allocates memory and chooses kernels: for a fair time,
    call `decode_timed` once before.

    Args:
        partial: file for the images that are complete so far, or None. Images that an interrupted call left there are
            not generated again.
        partial_every_s: seconds between two writes of this file.

    Returns:
        The records, in the order of the prompts.
    """
    parts = [load_records(partial)] if partial is not None and partial.exists() else []
    finished = {id for part in parts for id in part.prompt_ids}
    if finished:
        log.info("%d of %d images were generated by an interrupted job", len(finished), len(prompts))
    todo = [prompt for prompt in prompts if prompt.id not in finished]
    name = f"{decoder.spec.method_id} T{decoder.sampling.temperature:g}"
    saved = time.monotonic()
    with tqdm(total=len(todo), desc=name, unit="image", disable=None, mininterval=1.0) as progress:
        for complete in _generate(decoder, todo, encoder, run_seed, batch_size):
            parts.append(_to_records(decoder, *complete, run_seed, batch_size))
            progress.update(len(parts[-1]))
            # Each write rewrites the whole file.
            if partial is not None and time.monotonic() - saved > partial_every_s:
                save_records(partial, concatenate_records(parts))
                saved = time.monotonic()
    records = concatenate_records(parts, [prompt.id for prompt in prompts])
    warn_of_few_accepted(decoder, records.target_forwards)
    return records


def warn_of_few_accepted(decoder: Decoder, forwards: torch.Tensor) -> None:
    """Log a warning if the target accepted nearly no draft of a draft model or of heads.

    `forwards` is `target_forwards` of records, (images,).
    """
    spec = decoder.spec
    # Each forward pass emits its accepted drafts and one token more: tokens = forwards + accepted drafts.
    num_steps = int(forwards.sum()) - len(forwards)  # without the prefills
    num_accepted = len(forwards) * decoder.num_tokens - int(forwards.sum())
    num_drafts = num_steps * decoder.max_depth  # the most that could be accepted
    if spec.drafts_row.is_trained and num_drafts >= LEAST_DRAFTS and num_accepted < FEW_ACCEPTED * num_steps:
        log.warning(
            "%s: the target accepted %d of %d drafts in %d steps, nearly none; check that the draft model or the heads "
            "are trained for this target",
            spec.label,
            num_accepted,
            num_drafts,
            num_steps,
        )


def _generate(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, run_seed: int, batch_size: int
) -> Iterator[tuple[list[Prompt], Generation, list[float]]]:
    # Yields complete images with their prompts, and each image's seconds.
    num_rows = min(batch_size, len(prompts))
    state = decoder.runner.borrow(decoder.allocate, num_rows)
    # Free rows wait until an eighth of the batch is free, so that their prefills run as one batch.
    group = max(1, num_rows // 8)
    running: dict[int, Prompt] = {}
    num_left = len(prompts)
    seconds = [0.0] * num_rows
    with closing(_with_noise(decoder, prompts, run_seed, num_rows)) as coming:
        while True:
            # Waiting for noise and encoding text come before the clock starts.
            idle = [row for row in range(num_rows) if row not in running]
            taken = list(islice(coming, len(idle)))
            encoded = encode_prompts(encoder, [prompt for prompt, _ in taken]) if taken else None
            synchronise(decoder.device)
            begun = time.perf_counter()
            for row, (prompt, _) in zip(idle, taken, strict=False):  # at the end fewer prompts than idle rows
                running[row] = prompt
                seconds[row] = 0.0
            if not running:
                return
            if encoded is not None:
                features, mask = encoded
                fields = [field for _, field in taken]
                for part in _refills(len(taken), decoder.device):  # several prefills on a GPU
                    decoder.fill(state, idle[part], features[part], mask[part], fields[part])
                del fields
            num_left -= len(taken)
            del taken  # from here on the state alone holds the noise, and frees it
            # Stop when `group` rows are free, or as many rows as prompts wait. If none waits, 0 or num_rows: run on to
            # the end of all rows. Rows without a prompt count as complete.
            decoder.run(state, min(group, num_left) or num_rows)
            lengths = state.lengths.tolist()  # waits for the GPU, before the clock is read
            share = (time.perf_counter() - begun) / len(running)
            for row in running:
                seconds[row] += share
            complete = [row for row in running if lengths[row] == decoder.num_tokens]
            finished = [running.pop(row) for row in complete]
            yield finished, state.collect(complete), [seconds[row] for row in complete]


def encode_prompts(encoder: TextEncoder, prompts: Sequence[Prompt]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and the mask of prompts from their text encoder.

    Raises:
        FloatingPointError: features of a prompt are not finite. A T5 in float16 may overflow.
    """
    features, mask = encoder.encode([prompt.text for prompt in prompts])
    check_finite(features, [f"prompt {prompt.id}" for prompt in prompts], "features", "the text encoder")
    return features, mask


def _refills(num_prompts: int, device: torch.device) -> list[slice]:
    # On a GPU sizes are powers of two, since libraries choose kernels and buffers for each new size.
    if device.type != "cuda":
        return [slice(0, num_prompts)]
    parts = []
    begin = 0
    while begin < num_prompts:
        # The largest power of two that is not larger than the rest.
        size = 1 << ((num_prompts - begin).bit_length() - 1)
        parts.append(slice(begin, begin + size))
        begin += size
    return parts


def _with_noise(
    decoder: Decoder, prompts: Sequence[Prompt], run_seed: int, num_ahead: int
) -> Generator[tuple[Prompt, ImageNoise], None, None]:
    """Yield prompts with their noise, which threads make for `num_ahead` prompts while earlier images are decoded."""
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
        # Also if the caller closes the generator early: nobody needs the noise of later prompts.
        pool.shutdown(cancel_futures=True)


def _to_records(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    generation: Generation,
    seconds: Sequence[float],
    run_seed: int,
    batch_size: int,
) -> GenerationRecords:
    config = decoder.sampling
    nodes = generation.accepted_nodes
    metadata = {
        "method": decoder.spec.to_dict(),
        "tree_shape": asdict(decoder.spec)["tree_shape"],  # as plain values, which `to_dict` leaves out
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
        # A batch is as wide as its image with most steps. Padded to the most possible, records can be concatenated.
        accepted_nodes=F.pad(nodes, (0, decoder.num_tokens - nodes.shape[1]), value=-1).short().cpu(),
        is_substituted=generation.is_substituted.cpu(),
        seconds=torch.tensor(seconds),
        margins=generation.margins.cpu(),
        metadata=metadata,
    )


def decode_timed(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, run_seed: int
) -> tuple[Generation, float]:
    """Generate one batch. The seconds are those without text encoding and making noise."""
    features, mask = encode_prompts(encoder, prompts)
    fields = [decoder.make_noise(run_seed, prompt.id) for prompt in prompts]
    synchronise(decoder.device)
    begun = time.perf_counter()
    generation = decoder.generate(features, mask, fields)
    synchronise(decoder.device)
    return generation, time.perf_counter() - begun


def synchronise(device: torch.device | str) -> None:
    """Wait until a GPU has finished all its work, so that a clock can be read. Do nothing on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
