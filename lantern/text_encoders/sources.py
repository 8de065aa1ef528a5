"""Encoder of prompts with source pictures, which GLM-Image edits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lantern.models.code_colours import CodeColours
from lantern.models.sources import place_sources


class SourceEncoder:
    """The encoder of texts that describe edits of the same source pictures. It is a `TextEncoder`.

    A prompt begins with the codes of the pictures, each between two tokens of the model. The text and the size of the
    image follow. Each picture may have any height and width that the processor supports.

    Args:
        model: a `GlmImageForConditionalGeneration` of transformers, which computes the codes.
        processor: its `GlmImageProcessor`.
        texts: all texts that will be encoded.
        pictures: the source pictures, in any type that the processor supports.
        shape: height and width of the image in codes.

    Attributes:
        max_tokens: length of the longest prompt in tokens.

    Raises:
        ValueError: the processor does not support a picture, for example if its longer side is more than four times the
            shorter one.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        texts: Sequence[str],
        pictures: Sequence[Any],
        shape: tuple[int, int],
    ) -> None:
        self._model = model
        ids = [model.config.image_start_token_id, model.config.image_end_token_id]
        begin, end = processor.tokenizer.convert_ids_to_tokens(ids)
        places = f"{begin}{processor.image_token}{end}" * len(pictures)
        sides = {"target_h": shape[0] * CodeColours.pixels, "target_w": shape[1] * CodeColours.pixels}
        inputs = {
            text: processor(text=places + text, images=list(pictures), return_tensors="pt", **sides)
            for text in dict.fromkeys(texts)
        }
        first = inputs[texts[0]]
        self._grids = first["image_grid_thw"].to(model.device)
        with torch.inference_mode():
            pixels = first["pixel_values"].to(model.device)
            features = model.get_image_features(pixels, self._grids[:-1], return_dict=True)
            self._codes = model.get_image_tokens(features.pooler_output)
        self._ids = {text: prompt["input_ids"][0] for text, prompt in inputs.items()}
        self.max_tokens = max(len(ids) for ids in self._ids.values())

    def encode(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompts, int64 (texts, max_tokens, 4), and their mask, bool (texts, max_tokens).

        A token of a prompt has four numbers: its id, and its positions in time, row and column, see `place_sources`.
        """
        rows = [self._ids[text] for text in texts]
        ids = torch.stack([F.pad(row, (self.max_tokens - len(row), 0)) for row in rows])
        begins = torch.tensor([[self.max_tokens - len(row)] for row in rows])
        mask = torch.arange(self.max_tokens) >= begins
        num_grids = torch.full((len(texts),), len(self._grids))
        device = self._grids.device
        prompts = place_sources(
            self._model,
            ids.to(device),
            mask.to(device),
            self._grids.repeat(len(texts), 1),
            num_grids,
            self._codes.repeat(len(texts)),
        )
        return prompts, mask
