"""Several images of a prompt, and the log-probabilities of their tokens, against forward passes written out."""

from __future__ import annotations

import pytest
import torch

import lantern
from helpers.tiny_processors import make_emu3_processor
from helpers.tiny_transformers import NUM_CODES, make_tiny
from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.methods import make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig, filter_logits

PROMPTS = ["a large red circle on grass", "a small blue square on sand"]
METHODS = {"jacobi": {}, "lantern": {"k": 20, "delta": 0.2}}


@pytest.fixture(scope="module")
def model():
    return lantern.load("embedded")


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Log-probabilities of a single position, in plain Python."""
    logits = (logits / temperature).tolist()
    least = sorted(logits)[-top_k]
    kept = {token: logit for token, logit in enumerate(logits) if logit >= least}
    probs = dict(zip(kept, torch.tensor(list(kept.values())).softmax(0).tolist(), strict=True))
    total, chosen = 0.0, []
    for token in sorted(kept, key=lambda token: -kept[token]):
        if total > top_p:
            break
        chosen.append(token)
        total += probs[token]
    found = torch.full((len(logits),), -torch.inf)
    found[chosen] = torch.tensor([kept[token] for token in chosen]).log_softmax(0)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_log_probs_are_those_of_a_plain_forward_pass(model, method):
    """With guidance, temperature, top-k and top-p; the branches run one after the other, without a cache."""
    target, sampling = model.models.target, model.sampling
    model.sampling = SamplingConfig(temperature=0.9, top_k=50, top_p=0.9, cfg_scale=3.0)
    try:
        images = model.generate(PROMPTS, method, seed=3, with_log_probs=True, **METHODS[method])
    finally:
        model.sampling = sampling
    features, mask = model.encoder.encode(PROMPTS)
    codes, first = images.codes.long(), features.shape[1] - 1
    with torch.inference_mode():
        runs = [target(*prompts, codes[:, :-1])[:, first:] for prompts in ((features, mask), target.null_prompt(mask))]
        captioned, null = (target.read_logits(hidden) for hidden in runs)
    logits = null + 3.0 * (captioned - null)
    expected = torch.stack([torch.stack([filtered(row, 0.9, 50, 0.9) for row in image]) for image in logits])
    expected = expected.gather(-1, codes[..., None])[..., 0]
    assert images.log_probs.shape == codes.shape and images.log_probs.dtype == torch.float32
    assert not any(
        part.is_inference() for part in (images.log_probs, images.codes, images.grids)
    )  # autograd takes them
    torch.testing.assert_close(images.log_probs, expected, atol=1e-4, rtol=0)
    if method != "lantern":  # which accepts drafts that the filters remove
        assert images.log_probs.isfinite().all()


def test_log_probs_are_those_that_decoding_used(model):
    """Autoregressive decoding stores keys and values, and runs one token after the other."""
    decoder = make_decoder(model.models, make_method("autoregressive"), model.sampling)
    seen = []
    decoder.score_observer = lambda scores: seen.append(
        filter_logits(scores.logits, model.sampling).log_softmax(-1)[0, 0]
    )
    records = generate_records(decoder, [Prompt("0", PROMPTS[0])], model.encoder, run_seed=3, batch_size=1)
    images = model.generate(PROMPTS[0], "autoregressive", seed=3, with_log_probs=True)
    assert torch.equal(images.codes, records.codes)
    expected = torch.stack([row[token] for row, token in zip(seen, records.codes[0, 1:].long(), strict=True)])
    torch.testing.assert_close(images.log_probs[0, 1:], expected, atol=1e-4, rtol=0)


def test_log_probs_of_a_model_of_transformers_are_its_own(model):
    """Emu3 within lines: what its own forward pass says of the codes, and 0 for the ends of lines."""
    theirs, _ = make_tiny("emu3")
    wrapped = lantern.from_transformers(theirs, make_emu3_processor(), grid=(2, 3))
    wrapped.sampling = SamplingConfig()
    images = wrapped.generate(["a red fox", "cat"], "jacobi", with_log_probs=True)
    ids, mask = wrapped.encoder.encode(["a red fox", "cat"])
    is_end = images.codes == NUM_CODES
    words = torch.where(is_end, 6, 40 + images.codes.long())
    for row in range(2):
        prompt = ids[row, mask[row]]
        with torch.no_grad():
            logits = theirs(torch.cat([prompt, words[row]])[None]).logits[0, len(prompt) - 1 : -1, 40 : 40 + NUM_CODES]
        expected = logits.log_softmax(-1).gather(-1, (words[row, :, None] - 40).clamp(min=0))[:, 0]
        found = images.log_probs[row]
        torch.testing.assert_close(found[~is_end[row]], expected[~is_end[row]], atol=1e-4, rtol=0)
        assert (found[is_end[row]] == 0).all() and is_end[row].sum() == 2
    assert model.generate(PROMPTS[0]).log_probs is None


def test_several_images_of_a_prompt_have_noise_of_their_own(model):
    images = model.generate(PROMPTS, "jacobi", num_images=2)
    assert images.records.prompt_ids == ["0", "0/1", "1", "1/1"]
    assert len(images.pixels) == 4 and len(images.codes.unique(dim=0)) == 4
    one = model.generate(PROMPTS, "jacobi")
    assert torch.equal(images.codes[::2], one.codes)
    fewer = model.generate(PROMPTS[0], "autoregressive", num_images=2, batch_size=1)
    assert torch.equal(fewer.codes, images.codes[:2])
    with pytest.raises(ValueError, match="num_images of generate must be an integer >= 1, got 0"):
        model.generate(PROMPTS, num_images=0)
