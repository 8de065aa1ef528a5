"""LlamaGen's text encoder, the T5 model flan-t5-xl, read from a local folder in its published layout.

A text is cleaned and encoded by T5 with the padding on the right. LlamaGen then moves the padding to the left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from lantern.io import check_finite_weights, read_json
from lantern_models.text.caption_cleaning import clean_caption

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 120

log = logging.getLogger(__name__)


class T5TextEncoder:
    """A `TextEncoder` that cuts a text with more than `max_tokens` tokens, including the end token.

    A warning states how many are cut, once per text.

    Args:
        folder: folder with config.json, tokenizer.json and the weights of a T5, as in its Hugging Face repository. If
            the T5 has a decoder, only its encoder is read.
        caption_dim: expected number of channels of a token's feature. None accepts any number. flan-t5-xl has 2048.
        dtype: dtype of the weights. LlamaGen was run with a T5 in bfloat16.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or belongs to another model, or the number of channels is not `caption_dim`.

    Source: FoundationVision/LlamaGen@ce98ec4, language/t5.py and autoregressive/sample/sample_t2i.py.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        caption_dim: int | None = None,
        max_tokens: int = MAX_TOKENS,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        folder = Path(folder)
        config = _read_config(folder, caption_dim)
        self.caption_dim = int(config["d_model"])
        self.max_tokens = max_tokens
        self._pad_id = int(config.get("pad_token_id", 0))
        self._tokenizer = _load_tokenizer(folder, max_tokens)
        self._model = _load_model(folder, dtype).to(device)
        self._device = torch.device(device)
        self._reported: set[str] = set()  # texts of earlier warnings

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Clean texts and split them into tokens, padded on the right.

        Returns:
            Three tensors: ids with the end token, int64 (texts, max_tokens), their mask, bool (texts, max_tokens), and
            whether each text was cut, bool (texts,).
        """
        encodings = self._tokenizer.encode_batch([clean_caption(text) for text in texts])
        ids = torch.full((len(texts), self.max_tokens), self._pad_id)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = torch.tensor(encoding.ids)
            mask[row, : len(encoding.ids)] = True
        # `overflowing` holds the tokens after max_tokens.
        is_cut = [bool(encoding.overflowing) for encoding in encodings]
        cut = list(compress(texts, is_cut))
        if not self._reported.issuperset(cut):
            log.warning(
                "%d of %d prompts are cut to max_tokens = %d tokens, the first is %.80r",
                *(len(cut), len(texts), self.max_tokens, cut[0]),
            )
            self._reported.update(cut)
        return ids, mask, torch.tensor(is_cut)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the features of texts, on the CPU, and their mask, both padded on the left."""
        ids, mask, _ = self.tokenize(texts)
        output = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device))
        return rotate_to_left_padding(output.last_hidden_state.float().cpu(), mask)


def rotate_to_left_padding(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the tokens of each text to the end of the axis, and the padding, whose features become 0, to the start.

    Args:
        features: (texts, tokens, dim), padded on the right.
        mask: bool (texts, tokens), False at padding.
    """
    num_tokens = mask.shape[1]
    num_pads = (~mask).sum(1, keepdim=True)  # (texts, 1)
    # Position i takes the feature of i - num_pads. The modulo moves the padding from the end to the front.
    source = (torch.arange(num_tokens, device=mask.device) - num_pads) % num_tokens  # (texts, tokens)
    rotated = features.gather(1, source[..., None].expand_as(features))
    mask = mask.flip(1)  # tokens last, as each row is tokens, then padding
    return rotated.masked_fill(~mask[..., None], 0), mask


def _read_config(folder: Path, caption_dim: int | None) -> dict[str, Any]:
    path = _existing(folder / "config.json")
    config = read_json(path)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "t5":
        raise ValueError(f"{path}: model_type should be t5, found {kind!r}; give the folder of a T5 such as flan-t5-xl")
    if caption_dim is not None and config.get("d_model") != caption_dim:
        raise ValueError(
            f"{path}: d_model should be {caption_dim} to fit the model (caption_dim), found {config.get('d_model')}; "
            "LlamaGen needs 2048, the d_model of flan-t5-xl"
        )
    return config


def _load_tokenizer(folder: Path, max_tokens: int) -> Tokenizer:
    """Load the tokenizer in a tokenizer.json, which cuts texts to `max_tokens`."""
    from tokenizers import Tokenizer

    # Not by transformers, whose version 5 would build a different tokenizer from the vocabulary in the file.
    path = _existing(folder / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path} is damaged or is no tokenizer ({error}); fetch it again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _load_model(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    # Imported here: transformers takes seconds to import, and only this function needs it.
    from transformers import T5EncoderModel

    try:
        model, report = T5EncoderModel.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]  a pair here
            str(folder),
            dtype=dtype,
            local_files_only=True,
            weights_only=True,  # the library's default for pickles, stated here because it matters
            attn_implementation="eager",
            output_loading_info=True,
        )
    except (RuntimeError, SafetensorError, EOFError, UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the weights in {folder} cannot be read ({reason:.300}); fetch them again") from error
    # transformers would only warn, and initialise these tensors at random.
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"the weights in {folder} lack the tensor {missing[0]} ({len(missing)} such); they are not those of "
            "config.json's model: fetch both again"
        )
    check_finite_weights(folder, dict(model.named_parameters()))
    return model.eval()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the folder of a T5 that holds it (flan-t5-xl)")
    return path
