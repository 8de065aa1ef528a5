"""The language model of GLM-Image, as in vLLM-Omni, but in the runner of vLLM, which has one for CPUs.

vLLM-Omni 0.30 has none: `vllm_omni/platforms/interface.py:61` raises NotImplementedError for the worker of such a
stage. Importing `vllm_omni` also replaces parts of vLLM. Only two of its files are therefore used here: the class of
the model, and the method that gives the tokens of both grids their rows and columns. Prompts are ids, which state the
grids: ..., <sop>, height, width, <eop>, <sop>, height, width of the preview, <eop>, begin of the image.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from typing_extensions import override
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

if "vllm_omni" not in sys.modules:  # a package without the code of its __init__.py
    package = ModuleType("vllm_omni")
    package.__path__ = list(find_spec("vllm_omni").submodule_search_locations)  # type: ignore[union-attr]
    sys.modules["vllm_omni"] = package

from vllm_omni.model_executor.models.glm_image.glm_image_ar import GlmImageForConditionalGeneration
from vllm_omni.worker.gpu_model_runner import OmniGPUModelRunner

_positions_of_prompts = GPUModelRunner._calc_mrope_positions


def _calc_mrope_positions(runner: Any, scheduled: Any) -> None:
    """Compute the positions of all tokens of a step. vLLM's own method would count images on as if they were text."""
    _positions_of_prompts(runner, scheduled)
    OmniGPUModelRunner._fixup_precomputed_mrope_decode_positions(runner, scheduled)


GPUModelRunner._calc_mrope_positions = _calc_mrope_positions


class GlmImageText(GlmImageForConditionalGeneration):
    """The language model, without source pictures."""

    supports_multimodal = False

    @override
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        return super().forward(*args, **options).text_hidden_states

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed words and codes, which share their ids."""
        return self.model.language_model.embed_input_ids(input_ids)
