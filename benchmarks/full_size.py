"""Memory and time of every preset at a published model size. Weights are random, so nothing is downloaded.

    python benchmarks/full_size.py --size B --grid 4                     # minutes on a CPU
    python benchmarks/full_size.py --size XL --grid 4 --dtype bfloat16   # true width and depth, an image of 16 tokens
    python benchmarks/full_size.py --size XL --device cuda --dtype bfloat16 --batch 4
    python benchmarks/full_size.py --size janus-pro-7b --device cuda --dtype bfloat16   # layers of transformers
    python benchmarks/full_size.py --size janus-pro-7b --own-layers --device cuda --dtype bfloat16   # Lantern's layers

For each preset, one image (or one batch) is generated from random caption features or prompt ids, and decoded to
pixels. An identical run before it warms up and is not counted.

The output has the seconds of the prefill, of the steps and of the image decoder, and the peak memory. `step_operations`
is the number of kernels that a step launches on a GPU, see kernels.py. The last line of the output is JSON.

Random weights give nearly uniform distributions. The seconds per step are realistic. The seconds per image are not,
because they depend on accepted lengths.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple

import torch
from kernels import count_kernels

from lantern.cards.published import CARDS
from lantern.checkpoints.native import empty_model
from lantern.codebook import code_dtype, nearest_codes
from lantern.decoding import Decoder, make_decoder
from lantern.decoding_state import DecodingModels
from lantern.generation import decode_timed
from lantern.methods import ACCEPTANCE, PRESETS, MethodSpec, Parameter, make_method
from lantern.models.adapter import AdapterConfig, TransformersTarget
from lantern.models.config import FFN_MULTIPLE, LLAMAGEN_SIZES, DraftConfig, pick
from lantern.models.draft import DraftModel
from lantern.models.families import FAMILIES
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.transformer import cast_weights
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.stepping import MODES
from lantern_pipeline.measure.memory import peak_gib, reset_peak
from lantern_pipeline.measure.timing import clock

MODELS = [name for name, card in CARDS.items() if card.prompts.encoder in FAMILIES]  # of transformers
PARAMETERS = {"k": 100, "delta": 0.1, "lambda_": 2.0, "omega": 1.1, "weight": 0.8, "budget": 0.1, "threshold": 0.5}


def name_of(device: torch.device) -> str:
    """Return the name of the GPU or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


class Models(NamedTuple):
    """Models and device of a measurement.

    Attributes:
        decoding: target, draft model and table of nearest codes.
        tokenizer: image tokenizer.
        device: device of all models.
    """

    decoding: DecodingModels
    tokenizer: VQ16
    device: torch.device


def make_config(size: str, grid: int | None, **changes: int) -> TargetConfig:
    """Return the sizes of a published target.

    Args:
        size: name of the target: "B" and so on for LlamaGen, or a published model of transformers.
        grid: codes per side of the image. None for the published size; for LlamaGen 16, as in its stage 1.
        changes: sizes to change, such as num_layers. Only for models of transformers.
    """
    if size in MODELS:
        return make_adapter_config(size, grid, **changes)
    sizes = {"vocab_size": 16384, "num_text_tokens": 120, "caption_dim": 2048, "ffn_multiple": FFN_MULTIPLE}
    return TargetConfig(**LLAMAGEN_SIZES[size], **sizes, grid=grid or 16)


def make_adapter_config(size: str, grid: int | None, **changes: int) -> AdapterConfig:
    """Return the sizes of a published model of transformers, with prompts of 128 ids. Args as in `make_config`."""
    import transformers

    card = CARDS[size]
    row = FAMILIES[card.prompts.encoder]
    sizes = {"num_kv_heads": card.target["num_heads"], **card.target, **changes}
    names = {"hidden_size": "dim", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
    names |= {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_width"}
    known = {theirs: sizes[name] for theirs, name in names.items()}
    known |= {"vocab_size": sizes["num_prompt_ids"], "pad_token_id": 0}
    if row.uses_grid_rope:  # from GLM-Image's config.json; the class has other defaults
        known["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    layers = getattr(transformers, row.layers_class).config_class(**known)
    is_guided = not row.uses_grid_rope
    return AdapterConfig(
        **sizes,
        vocab_size=card.images.codebook_size + ("line_end" in row.target),
        grid=grid or card.images.grid,
        num_text_tokens=128,
        null_ids=(1, 2) if is_guided else (),
        null_filler=3 if row.prompt.filler else None,
        layers_class=row.layers_class,
        settings={**layers.to_diff_dict(), "vocabulary_map": {}},
        head_width=sizes["dim"] if row.target.get("has_mlp_head") else 0,
        uses_grid_rope=row.uses_grid_rope,
    )


def make_random(
    cls: type[torch.nn.Module], config: object, dtype: torch.dtype, device: torch.device
) -> torch.nn.Module:
    """Return a model with random weights, which are created in `dtype`, so that no float32 copy takes memory.

    Args:
        cls: class of the model.
        config: its sizes.
        dtype: dtype of the weights.
        device: device of the weights.
    """
    model = empty_model(cls, config, dtype, device).eval()
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter) if parameter.ndim == 1 else torch.nn.init.normal_(parameter, std=0.02)
    return model


def make_draft(target: TargetModel, dtype: torch.dtype) -> DraftModel | None:
    """Return a draft model with random weights: of a published size if the target has one, else of Lantern's.

    None if the target generates a smaller image first, which draft models do not support.
    """
    config = target.config
    if config.small_grid:
        return None
    if config.has_qk_norm:
        return make_random(DraftModel, DraftConfig.of_chameleon(config), dtype, target.device)
    draft = cast_weights(DraftModel.from_target(target, 0).eval(), dtype)
    # LlamaGen's published draft models also attend to padded prompt positions.
    draft.config = replace(draft.config, masks_text_padding=bool(config.num_prompt_ids))
    return draft


def make_decoding_models(options: argparse.Namespace, device: torch.device) -> DecodingModels:
    """Return random models of the size in `options`.

    They are not prepared for decoding and have no table of nearest codes.
    """
    dtype, config = getattr(torch, options.dtype), make_config(options.size, options.grid, **options.sizes)
    if isinstance(config, AdapterConfig) and not options.own_layers:
        target = make_random(TransformersTarget, config, dtype, device)
    else:
        target = make_random(TargetModel, pick(TargetConfig, asdict(config)), dtype, device)
    return DecodingModels(target, make_draft(target, dtype))


def make_models(options: argparse.Namespace) -> Models:
    """Return random models of the size in `options`, prepared for decoding, and an image tokenizer.

    The table of nearest codes is that of the tokenizer's random codebook.
    """
    device = torch.device(options.device)
    models = make_decoding_models(options, device)
    config = models.target.config
    with torch.device(device):  # VQ-16 replaces the image tokenizers of all model families
        tokenizer = VQ16(VQ16Config(grid=config.grid, codebook_size=config.num_codes)).eval()
    models.nearest_codes = nearest_codes(tokenizer.codebook.detach().cpu(), PARAMETERS["k"], "l2").to(device)
    models.target.prepare_for_decoding()
    if models.draft is not None:
        models.draft.prepare_for_decoding()
    return Models(models, tokenizer, device)


def fake_models(options: argparse.Namespace) -> DecodingModels:
    """Return models of the size in `options` without weights, on the meta device, for counting kernels.

    The table of nearest codes is all zeros, since its values do not change the count.
    """
    models = make_decoding_models(options, torch.device("meta"))
    num_codes = models.target.config.num_codes
    models.nearest_codes = torch.zeros(num_codes, PARAMETERS["k"], dtype=code_dtype(num_codes))
    return models


def example_of(parameter: Parameter) -> float | str:
    """Return an allowed value of a parameter: a word, or a number between its bounds."""
    if parameter.choices:
        return parameter.choices[0]
    low = max(parameter.low, 0)
    return int(low) + 1 if parameter.is_integer or math.isinf(parameter.high) else (low + parameter.high) / 2


def make_spec(name: str) -> MethodSpec:
    """Return a preset with its published tree, and with example values for its open parameters."""
    wanted = ACCEPTANCE[PRESETS[name].get("acceptance", "exact")].parameters
    open_parameters = [key for key in wanted if key not in PRESETS[name]]
    return make_method(name, **{key: PARAMETERS.get(key, example_of(wanted[key])) for key in open_parameters})


def make_sampling(config: TargetConfig, options: argparse.Namespace) -> SamplingConfig:
    """Return the sampling settings of the papers. Guidance is off if the target has no null prompt."""
    cfg_scale = options.cfg_scale if config.null_ids or not config.num_prompt_ids else 1.0
    return SamplingConfig(options.temperature, 1000, 1.0, "top_k_first", cfg_scale)


class RandomCaptions:
    """Text encoder that returns 20 random tokens for every text: caption features, or ids if the target reads ids.

    Args:
        config: sizes of the target.
    """

    def __init__(self, config: TargetConfig) -> None:
        self.config = config

    def encode(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random prompts, left-padded.

        Returns:
            (features, float32 (texts, tokens, channels), or ids, int64 (texts, tokens); mask, bool (texts, tokens)).
        """
        num_tokens = self.config.num_text_tokens
        generator = torch.Generator().manual_seed(0)
        mask = (torch.arange(num_tokens) >= num_tokens - 20).expand(len(texts), -1)
        if self.config.num_prompt_ids:
            return torch.randint(self.config.num_prompt_ids, mask.shape, generator=generator), mask
        features = torch.randn(len(texts), num_tokens, self.config.caption_dim, generator=generator)
        return features * mask[..., None], mask


def run_image(decoder: Decoder, models: Models, options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Time one batch, from caption features to pixels.

    Returns:
        (seconds by stage, number of forward passes of the target for the slowest image).
    """
    device, seconds, run = models.device, {"noise_s": 0.0, "prefill_s": 0.0}, decoder.run
    prompts = [Prompt(str(i), "") for i in range(options.batch)]

    def timed_run(*arguments: object) -> None:
        with clock(seconds, "steps_s", device):
            run(*arguments)

    decoder.run = timed_run
    with clock(seconds, "noise_s", device):
        generation, decoding_s = decode_timed(decoder, prompts, RandomCaptions(models.decoding.target.config), 0)
    del decoder.run
    seconds["noise_s"] -= decoding_s
    seconds["prefill_s"] = decoding_s - seconds["steps_s"]
    with clock(seconds, "image_decoder_s", device):
        models.tokenizer.decode(models.decoding.target.config.image_codes(generation.codes))
    return seconds, int(generation.target_forwards.max())


def measure(models: Models, preset: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure the seconds, steps and memory of a preset."""
    spec, sampling = make_spec(preset), make_sampling(models.decoding.target.config, options)
    parts = models.decoding if spec.needs_nearest_codes else replace(models.decoding, nearest_codes=None)
    decoder = make_decoder(parts, spec, sampling, stepping=options.stepping)
    reset_peak(models.device)
    run_image(decoder, models, options)
    seconds, forwards = run_image(decoder, models, options)
    return {
        "stepping": decoder.runner.mode,
        **{name: round(value, 4) for name, value in seconds.items()},
        "target_forwards": forwards,
        "step_s": round(seconds["steps_s"] / max(1, forwards - 1), 4),
        "step_operations": count_kernels(partial(fake_models, options), spec, sampling, options.batch).total(),
        "memory_gib": peak_gib(models.device),
    }


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=[*LLAMAGEN_SIZES, *MODELS], default="XL")
    parser.add_argument("--own-layers", action="store_true", help="our layers in place of transformers'")
    parser.add_argument(
        "--grid", type=int, help="tokens a side, less is a try; default: LlamaGen's stage 1, 16, or the family's own"
    )
    parser.add_argument("--batch", type=int, default=1, help="images decoded together")
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--stepping", choices=MODES, default="auto", help="how steps are run; counted eagerly")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cfg-scale", type=float, default=7.5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def main() -> None:
    """Build the models once and measure every preset."""
    options = parse_options()
    options.grid, options.sizes = make_config(options.size, options.grid).grid, {}
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device(options.device)
    models = make_models(options)
    rows = {}
    for preset in options.presets:
        if models.decoding.draft is None and make_spec(preset).needs_draft_model:
            print(f"left out: {preset} needs a draft model, {options.size} has none", flush=True)
            continue
        rows[preset] = measure(models, preset, options)
        print(preset, rows[preset], flush=True)
    machine = {"device": name_of(device), "torch": torch.__version__, "threads": options.threads}
    report = {"benchmark": "full_size", "machine": machine, "settings": vars(options)}
    print(json.dumps(report | {"presets": rows}))


if __name__ == "__main__":
    main()
