"""GLM-Image's source pictures: pictures in the prompt, which the model edits as the text of the prompt says.

A prompt begins with the codes of its pictures, each between two tokens of the model. The text and the size of the image
follow. The model's processor writes a placeholder for each code, which the code replaces. A *position* is the time, row
and column that the rotary embedding reads, see `lantern_models.adapter.grid_positions`. All codes of a picture have the
same time, and their rows and columns depend on its shape. Prompts with source pictures are therefore given as ids with
positions, int64 (batch, tokens, 4): id, time, row, column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lantern_models.images.code_colours import CodeColours


def place_sources(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    grids: torch.Tensor,
    num_grids: torch.Tensor,
    codes: torch.Tensor,
) -> torch.Tensor:
    """Return prompts with source pictures, from what transformers' processor returns.

    Args:
        model: a `GlmImageForConditionalGeneration`.
        ids: ids of the prompts, padded on the left, int64 (batch, tokens).
        mask: True for prompt tokens, bool (batch, tokens).
        grids: duration (always 1), height and width of each grid of codes, int64 (grids, 3). For each prompt, the grids
            of its source pictures come first, then the grid of the image to generate.
        num_grids: number of grids of each prompt, int64 (batch,).
        codes: codes of all source pictures in the order of the placeholders, int64 (codes,).
    """
    is_begin, is_end = (ids == id for id in (model.config.image_start_token_id, model.config.image_end_token_id))
    # A token is a code if more pictures have begun than ended, and it begins none. The last token begins the image.
    is_code = (is_begin.cumsum(1) > is_end.cumsum(1)) & ~is_begin
    # Without the last grid, that of the image to generate.
    expected = [int(sizes[:-1].sum()) for sizes in grids.prod(1).split(num_grids.tolist())]
    if (found := is_code.sum(1).tolist()) != expected:
        raise ValueError(
            f"image_grid_thw must state the grids of the source pictures, which have {found} codes in the prompts, got "
            f"grids of {expected} codes; pass all outputs of the processor"
        )
    is_placeholder = ids == model.config.image_token_id
    if int(is_placeholder.sum()) != len(codes):
        raise ValueError(
            f"the prompts have {int(is_placeholder.sum())} placeholders of source pictures, so the pictures must have "
            f"as many codes, got the codes of {len(codes)}; pass all outputs of the processor"
        )
    positions, _ = model.model.get_rope_index(ids, grids, num_grids, mask)
    # The image begins at the position after the padded prompt, as it does without source pictures. Attention
    # depends only on differences of positions, so this changes no result.
    positions = positions + (ids.shape[1] - 1 - positions[..., -1:])
    return torch.stack([ids.masked_scatter(is_placeholder, codes.to(ids)), *positions], dim=-1)


def pictures_of(images: Sequence[Any], num_prompts: int) -> Sequence[Sequence[Any]]:
    """Return the source pictures of each prompt, given as a list for all prompts or as one list per prompt."""
    if not isinstance(images, list | tuple) or not images:
        raise ValueError(f"images must be a list of one or more source pictures, got {images!r:.60}")
    is_list = [isinstance(part, list | tuple) for part in images]
    rows = list(images) if all(is_list) else [images] * num_prompts
    if any(is_list) and (not all(is_list) or len(images) != num_prompts or not all(images)):
        parts = [len(part) if isinstance(part, list | tuple) else "no list" for part in images]
        raise ValueError(
            f"images must be a list of source pictures, or {num_prompts} lists of one or more, one for each prompt, "
            f"got {len(images)} entries of lengths {parts}"
        )
    # An array or a tensor of more than three axes holds several pictures. Pillow's pictures have no ndim.
    for picture in (picture for row in rows for picture in row):
        if isinstance(picture, list | tuple) or getattr(picture, "ndim", 3) > 3:
            raise ValueError(
                f"a source picture must be one picture, got {type(picture).__name__} of several; list them in images"
            )
    return rows


class SourceEncoder:
    """A `TextEncoder` that takes the numbers of prompts, since two may have the same text and other pictures.

    Args:
        model: a `GlmImageForConditionalGeneration` of transformers, which computes the codes.
        processor: its `GlmImageProcessor`.
        pictures: source pictures of each prompt, of any height and width, in any type that the processor supports.
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
        pictures: Sequence[Sequence[Any]],
        shape: tuple[int, int],
    ) -> None:
        self._model, self._processor = model, processor
        self._sides = {"target_h": shape[0] * CodeColours.pixels, "target_w": shape[1] * CodeColours.pixels}
        ids = [model.config.image_start_token_id, model.config.image_end_token_id]
        self._begin, self._end = processor.tokenizer.convert_ids_to_tokens(ids)
        known: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        codes: dict[int, torch.Tensor] = {}
        # Prompts may share a list of pictures, which is then encoded once. `known` has ids, grids and codes by key.
        keys = [(text, id(row)) for text, row in zip(texts, pictures, strict=True)]
        for key, row in zip(keys, pictures, strict=True):
            if key in known:
                continue
            inputs = self._process(key[0], row)
            if key[1] not in codes:
                codes[key[1]] = self._encode_pictures(inputs)
            known[key] = inputs["input_ids"][0], inputs["image_grid_thw"].to(model.device), codes[key[1]]
        self._prompts = [known[key] for key in keys]
        self.max_tokens = max(len(ids) for ids, _, _ in self._prompts)

    def _process(self, text: str, pictures: Sequence[Any]) -> Any:
        places = f"{self._begin}{self._processor.image_token}{self._end}" * len(pictures)
        try:
            return self._processor(text=places + text, images=list(pictures), return_tensors="pt", **self._sides)
        except Exception as error:  # of any type, since a picture may be anything
            raise ValueError(self._find_cause(text, pictures, error)) from error

    def _find_cause(self, text: str, pictures: Sequence[Any], error: Exception) -> str:
        # The processor's message does not say which picture is at fault, so that each is tried alone.
        for number, picture in enumerate(pictures):
            try:
                self._processor.image_processor(images=[picture], return_tensors="pt")
            except Exception as reason:
                return (
                    f"source picture {number} of the prompt {text!r:.60} must be a picture that the model's processor "
                    f"takes, got {picture!r:.60}: {reason}"
                )
        return f"the model's processor refuses the prompt {text!r:.60} with {len(pictures)} source pictures: {error}"

    def _encode_pictures(self, inputs: Any) -> torch.Tensor:
        grids = inputs["image_grid_thw"].to(self._model.device)
        with torch.inference_mode():
            pixels = inputs["pixel_values"].to(self._model.device)
            # The last grid is that of the image to generate.
            features = self._model.get_image_features(pixels, grids[:-1], return_dict=True)
            return self._model.get_image_tokens(features.pooler_output)

    def encode(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompts, int64 (prompts, max_tokens, 4), and their mask, bool (prompts, max_tokens).

        A token has four numbers: its id, and its positions in time, row and column (`place_sources`). `texts` are
        numbers of prompts, such as "3".
        """
        rows, grids, codes = zip(*(self._prompts[int(text)] for text in texts), strict=True)
        ids = torch.stack([F.pad(row, (self.max_tokens - len(row), 0)) for row in rows])
        begins = torch.tensor([[self.max_tokens - len(row)] for row in rows])  # (prompts, 1), after the padding
        mask = torch.arange(self.max_tokens) >= begins
        device = grids[0].device
        num_grids = torch.tensor([len(part) for part in grids])
        prompts = place_sources(
            self._model, ids.to(device), mask.to(device), torch.cat(grids), num_grids, torch.cat(codes)
        )
        return prompts, mask
