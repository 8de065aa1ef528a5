"""Number of kernels that a decoding step launches on a GPU, counted without a GPU.

    python benchmarks/kernels.py                        # at the sizes of LlamaGen XL, guided, in bfloat16, batch 1
    python benchmarks/kernels.py --output counts.json   # also writes JSON
    python benchmarks/kernels.py --model glm-image      # of autoregressive decoding by a model of transformers

The step runs on fake CUDA tensors. They have a device, a dtype and a shape, but no values and no memory. Composite
operations are decomposed first. Then every operation that is not a view counts as one kernel.

There are two exceptions. Top-k of many long rows counts as `TOP_K_KERNELS`. A sort or a cumulative sum counts as one
kernel, although it may launch more.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lantern import fused
from lantern.codebook import code_dtype
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.cards.card import ModelCard
from lantern_models.cards.published import CARDS
from lantern_models.families import FAMILIES
from lantern_models.sizes import FFN_MULTIPLE, LLAMAGEN_SIZES
from lantern_pipeline.measure.speed.random_models import random_models as published_models
from lantern_pipeline.measure.speed.random_models import target_config

XL = TargetConfig(
    **LLAMAGEN_SIZES["XL"],
    ffn_multiple=FFN_MULTIPLE,
    vocab_size=16384,
    grid=16,
    num_text_tokens=120,
    caption_dim=2048,
)
SAMPLING = SamplingConfig(1.0, 1000, 1.0, "top_k_first", 7.5)  # LlamaGen's
TABLE_COLUMNS = 1001  # for LANTERN's k of 1000, plus one that the residuals of its public code read
# Operations that are one kernel on CUDA, but are decomposed on other devices.
ATTENTION = "scaled_dot_product_attention"
FUSED = (ATTENTION, "_fused_rms_norm")
VIEWS = ("_unsafe_view",)  # views that are not marked as views
# PyTorch uses several blocks per row of top-k from these sizes on: (number of rows, number of columns).
# Source: aten/src/ATen/native/cuda/TensorTopK.cu.
MANY_BLOCKS = ((4001, 400), (800, 800), (200, 3000), (80, 5000), (41, 8000), (21, 10000), (1, 20000))
TOP_K_KERNELS = 21


class KernelCount(TorchDispatchMode):
    """Context manager that counts the kernels that its block would launch on a GPU. The block may run on any device.

    Attributes:
        by_name: number of kernels per name of an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of kernels counted so far."""
        return self.by_name.total()

    def __torch_dispatch__(
        self, function: Any, types: object, arguments: tuple = (), options: dict | None = None
    ) -> object:
        """Run an operation and count it. A composite operation is decomposed, and its parts are counted."""
        options = options or {}
        name = function.overloadpacket.__name__
        if function.namespace == "aten" and name not in FUSED:
            with self:
                result = function.decompose(*arguments, **options)
            if result is not NotImplemented:
                return result
        result = function(*arguments, **options)
        if name == ATTENTION:  # the memory layout of fused attention: nodes first, then heads
            result = result.transpose(1, 2).contiguous().transpose(1, 2)
        is_computed = function._schema.is_mutable or any(isinstance(part, torch.Tensor) for part in tree_leaves(result))
        if is_computed and not function.is_view and name not in VIEWS:
            self.by_name[name] += _top_k_kernels(arguments[0]) if name == "topk" else 1
        return result


def _top_k_kernels(values: torch.Tensor) -> int:
    """Return the number of kernels of a top-k over the last axis."""
    columns = values.shape[-1]
    num_rows = values.numel() // columns
    least = next(least for rows, least in MANY_BLOCKS if num_rows >= rows)
    return TOP_K_KERNELS if columns >= least else 1


def to_fake(owner: object, fake: FakeTensorMode, device: str) -> None:
    """Replace all tensors within an object by fake tensors, which have a shape but no values, in place.

    Args:
        owner: object, dict or list that contains tensors, directly or in its parts.
        fake: mode that makes fake tensors.
        device: device that the fake tensors report.
    """
    parts = vars(owner) if hasattr(owner, "__dict__") else owner
    for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        if isinstance(part, torch.device):
            parts[name] = torch.device(device)
        elif isinstance(part, torch.Tensor):
            is_meta = part.device.type == "meta"
            parts[name] = FakeTensor(fake, part, torch.device(device)) if is_meta else fake.from_tensor(part).to(device)
        elif isinstance(part, list | dict | torch.nn.Module) or type(part).__module__.startswith("lantern"):
            to_fake(part, fake, device)


def random_models(config: TargetConfig, dtype: torch.dtype) -> DecodingModels:
    """Return a random target, its draft model and a table of nearest codes, not prepared for decoding."""
    target = cast_weights(TargetModel(config).eval(), dtype)
    draft = cast_weights(DraftModel(DraftConfig.of(config)).eval(), dtype)
    columns = min(TABLE_COLUMNS, config.num_codes - 1)
    table = torch.zeros(config.num_codes, columns, dtype=code_dtype(config.num_codes))
    return DecodingModels(target, draft, table)


def count_kernels(
    make_models: Callable[[], DecodingModels], spec: MethodSpec, sampling: SamplingConfig, batch: int = 1
) -> Counter[str]:
    """Count the kernels of one step on a GPU, by name of the operation.

    Args:
        make_models: function that returns models which are not prepared for decoding, such as `random_models`. It is
            called on the meta device, so that weights take no memory.
        spec: the method.
        sampling: temperature, top-k, top-p and guidance.
        batch: number of images.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.device("meta"):
        models = make_models()
    to_fake(models, fake, "cpu")
    decoder = make_decoder(
        models, spec, sampling, stepping="eager"
    )  # the tree keeps real tensors, because its values are read here
    with fake, torch.inference_mode():
        to_fake(decoder, fake, "cuda")
        for model in (models.target, models.draft):
            if model is not None:
                model.prepare_for_decoding()
        state = decoder.allocate(batch)
        with KernelCount() as kernels:
            decoder.step(state)
    return kernels.by_name


def count_of_card(card: ModelCard) -> int:
    """Count the kernels of an autoregressive step of a published model in bfloat16, with the layers of transformers.

    Guidance is on if the model has a null prompt.

    Args:
        card: card of a published model.
    """
    config = target_config(card)
    sampling = SAMPLING if config.null_ids else replace(SAMPLING, cfg_scale=1.0)
    make = partial(published_models, config, torch.device("meta"), torch.bfloat16)
    return count_kernels(make, make_method("autoregressive"), sampling).total()


def main() -> None:
    """Print the number of kernels per step of several methods: by PyTorch only, and with Lantern's Triton kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="file for the counts")
    families = [name for name, card in CARDS.items() if card.prompts.encoder in FAMILIES]
    parser.add_argument("--model", choices=families, help="count autoregressive decoding of this model only")
    options = parser.parse_args()
    if options.model:
        print(f"{options.model} {count_of_card(CARDS[options.model])}")
        return
    methods: list[tuple[str, dict[str, Any]]] = [
        ("autoregressive", {}),
        *(("jacobi", {"tree": tree}) for tree in ("chain9", "chain15", "jacobi_50", "jacobi_100")),
        ("sjd", {}),
        ("coupled", {"tree": "chain3"}),
        ("eagle1", {"tree": "chain3"}),
        ("eagle1", {}),
        ("eagle2", {}),
        ("lantern", {"k": 1000, "delta": 0.1}),
        ("lantern_pp", {"k": 10, "lambda_": 2.0}),
    ]
    counts = {}
    for name, parts in methods:
        spec = make_method(name, **parts)
        row = counts[f"{name} {spec.tree or ''}".strip()] = {}
        for kind, is_usable in (("pytorch", fused.is_usable), ("triton", lambda device: device.type == "cuda")):
            with patch.object(fused, "is_usable", is_usable):
                row[kind] = count_kernels(partial(random_models, XL, torch.bfloat16), spec, SAMPLING).total()
        print(f"{name:<16} {spec.tree or '':<16} {row['pytorch']:>5} {row['triton']:>5}", flush=True)
    if options.output:
        report = {"benchmark": "kernels", "torch": torch.__version__, "kernels_per_step": counts}
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
