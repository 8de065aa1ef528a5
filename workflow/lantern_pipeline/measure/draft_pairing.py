"""Which token a draft model expects beside each hidden state of the target: the next one, as decoding gives it, or the
one that the state is of, as the LANTERN authors' training code for Chameleon's targets pairs them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lantern.attention_mask import window_table
from lantern.decoding import DecodingModels, make_decoder
from lantern.generation import decode_timed
from lantern.methods import make_method
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig

NUM_IMAGES = 4

log = logging.getLogger(__name__)


@torch.inference_mode()
def measure_pairing(
    models: DecodingModels,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    sampling: Mapping[str, Any],
    temperature: float = 1.0,
) -> dict[str, float | str]:
    """Draws an image of each prompt with the target alone. Returns the shares of their places at which draft model and
    target prefer the same code, for hidden state r beside token r + 1 and beside token r, and which is higher by three
    standard errors, `trained_for`: next_token, same_token or undecided.
    """
    options = SamplingConfig(temperature=temperature, **sampling)
    decoder = make_decoder(DecodingModels(models.target), make_method("autoregressive"), options)
    codes = decode_timed(decoder, prompts, encoder, run_seed=0)[0].codes
    features, mask = (part.to(codes.device) for part in encoder.encode([prompt.text for prompt in prompts]))
    agreement = top1_agreement(models, features, mask, codes, options.cfg_scale)
    found = {f"top1_agreement_{name}": share for name, share in agreement.items()}
    error = sum(share * (1 - share) / codes.numel() for share in agreement.values()) ** 0.5
    is_clear = abs(agreement["next_token"] - agreement["same_token"]) > 3 * error
    found["trained_for"] = max(agreement, key=agreement.get) if is_clear else "undecided"
    if found["trained_for"] != "next_token":
        log.warning("the draft model may not have been trained for the next token, which it gets here: %s", found)
    return found


def top1_agreement(
    models: DecodingModels, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor, cfg_scale: float
) -> dict[str, float]:
    """Share of places at which the draft model's best code, guided, is the target's, for either pairing.

    Prompts are ids (images, num_text_tokens) and their mask, codes (images, tokens).
    """
    target, draft, (num_images, num_tokens) = models.target, models.draft, codes.shape
    first = target.config.num_text_tokens
    ids, masks = target.with_null(features, mask) if cfg_scale != 1 else (features[None], mask[None])
    window = window_table(torch.ones(1, num_tokens, num_tokens, dtype=torch.bool).tril(), target.dtype).to(codes.device)
    slots = torch.arange(first, first + num_tokens, device=codes.device).expand(num_images, -1)
    hidden, cache = target.prefill(ids, masks, first + num_tokens)
    seen = target.extend(cache, codes, slots, slots, cache.mask(window, slots[:, 0]))
    hidden = torch.cat([hidden, seen], dim=2)  # (captions, images, first + tokens, dim); row r has seen token r
    preferred = target.guided_logits(hidden[:, :, first - 1 :], cfg_scale).argmax(-1)  # of codes 0, 1, ...
    slots, shares = slots - 1, {}
    for name, ahead in {"next_token": 1, "same_token": 0}.items():
        # In both cases tokens 1, 2, ... of the prompt, then the codes: beside the state before each, or its own.
        rows = slice(1 - ahead, first - ahead)
        cache = draft.prefill(hidden[:, :, rows], masks[..., rows], first - 1 + num_tokens, ids[..., 1:])
        beside = hidden[:, :, first - ahead : first - ahead + num_tokens]
        drafted = draft.extend(cache, codes, beside, slots, slots, cache.mask(window, slots[:, 0]))
        wanted = preferred[:, 2 - ahead :]
        found = target.guided_logits(drafted, cfg_scale).argmax(-1)[:, : wanted.shape[1]]
        shares[name] = (found == wanted).float().mean().item()
    return shares
