"""Tests of shift heads as drafts: SSD against a slow loop of its rule, exact variants, and refusals."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_models import generate, make_heads, make_models, make_prompts
from lantern.decoding import Decoder, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.config import TargetConfig
from lantern.models.stored import load_model, save_model
from lantern.models.target import TargetModel
from lantern.noise import DRAFT, TARGET, Gumbel, NoiseField, Uniform
from lantern.sampling import SamplingConfig, filter_logits
from lantern_methods.shift_heads import ShiftHeads
from lantern_methods.ssd import LineSchedule
from lantern_models.checkpoints.decoding_models import load_decoding_models

KEEP, REDRAW = Uniform("keep", 5), Uniform("redraw", 5)


class SlowLines:
    """One image by SSD, one position after the other. All hidden states are computed anew in every forward pass."""

    def __init__(self, decoder: Decoder, row: int) -> None:
        self.target, self.heads = decoder.target, decoder.models.parts["heads"]
        self.sampling, self.rounds = decoder.sampling, decoder.spec["rounds"]
        self.prompt = [part[[row]] for part in make_prompts(decoder.models, 5)]
        config = self.target.config
        self.width, self.num_tokens = config.line_width, config.num_image_tokens
        self.noise = NoiseField(1, self.num_tokens, config.vocab_size, (TARGET, DRAFT, KEEP, REDRAW))
        self.noise.fill([0], [_with_all_streams(decoder, row)])
        self.num_forwards = 0

    def read(self, hidden: torch.Tensor, position: int) -> torch.Tensor:
        """Return the log-probabilities of the token at a position, (vocab,), from its state, (2, dim)."""
        logits = self.target.guided_logits(hidden[:, None, None], self.sampling.cfg_scale, torch.tensor([[position]]))
        return filter_logits(logits, self.sampling)[0, 0]

    def states(self, tokens: list[int]) -> torch.Tensor:
        """Return the states that predict the tokens and the one after them, (2, tokens + 1, dim)."""
        codes = torch.tensor([tokens], dtype=torch.int64)
        self.num_forwards += 1
        return self.target.forward_with_null(*self.prompt, codes)[:, self.prompt[1].shape[1] - 1 :]

    def uniform(self, stream: Uniform, position: int, slot: int) -> float:
        return float(self.noise.fresh(stream, torch.tensor([[position]]), torch.tensor([[slot]])))

    def sample(self, weights: torch.Tensor, position: int, stream: Gumbel) -> int:
        if self.sampling.is_greedy:
            return int(weights.argmax())
        return int((weights + self.noise.gumbel(stream, torch.tensor([[position]]))[0, 0]).argmax())

    def predict(self, states: torch.Tensor, tokens: list[int], place: int) -> torch.Tensor:
        """Return the state that the heads predict for a place, (2, dim)."""
        is_first_line = place < self.width
        source = len(tokens) - 1 if is_first_line else place - self.width
        head = self.heads.heads[place - len(tokens) if is_first_line else -1]
        embedded = self.target.token_embedding(torch.tensor(tokens[source])).expand(2, -1)
        return head(torch.cat([states[:, source], embedded], dim=-1))

    def correct(self, token: int, p: torch.Tensor, t: torch.Tensor, place: int, slot: int) -> int:
        if self.sampling.is_greedy:
            return int(t.argmax())
        if self.uniform(KEEP, place, slot) * p[token] <= t[token] and t[token] > 0:
            return token
        residual = (t - p).clamp(min=0).double()
        level = self.uniform(REDRAW, place, slot) * float(residual.sum())
        return int((residual.cumsum(0) <= level).sum())

    def draw(self) -> list[int]:
        tokens = [self.sample(self.read(self.states([])[:, 0], 0), 0, TARGET)]
        while len(tokens) < self.num_tokens:
            begin = len(tokens)
            end = (begin // self.width + 1) * self.width
            if begin < self.width:
                end = min(end, begin + self.heads.config.num_right)
            seen = self.states(tokens)
            self.num_forwards -= 1  # a decoder still has these states
            weights = [self.read(self.predict(seen, tokens, place), place) for place in range(begin, end)]
            drafts = [self.sample(weight, place, DRAFT) for place, weight in enumerate(weights, begin)]
            probs = [weight.softmax(-1) for weight in weights]
            for _ in range(min(self.rounds, end - begin)):
                states, first = self.states(tokens + drafts), len(tokens)
                exact = [self.read(states[:, place], place).softmax(-1) for place in range(first, end)]
                parts = zip(drafts, probs, exact, strict=True)
                drafts = [self.correct(*part, first + i, i) for i, part in enumerate(parts)]
                tokens.append(drafts.pop(0))
                probs = exact[1:]
            if drafts:
                tokens += drafts
                last = self.states(tokens)[:, end]
                if end < self.num_tokens:
                    tokens.append(self.sample(self.read(last, end), end, TARGET))
        return tokens


def _with_all_streams(decoder: Decoder, row: int):
    decoder = make_decoder(decoder.models, make_method("ssd", rounds=1), SamplingConfig())
    return decoder.make_noise(7, f"prompt-{row}")


@pytest.fixture(scope="module")
def lined():
    """Models with 4 lines of 5 codes and a line end, and 3 heads to the right."""
    return make_models(columns=5, line_end=1)


@pytest.mark.parametrize(
    ("name", "temperature", "rounds"),
    [
        ("models", 1.0, 0),
        ("models", 1.0, 2),
        ("models", 0.0, 1),
        ("lined", 1.0, 1),
        ("lined", 1.0, 9),
        ("lined", 0.0, 2),
    ],
)
def test_ssd_is_its_slow_loop(name, temperature, rounds, request):
    models = request.getfixturevalue(name)
    sampling = {"temperature": temperature, "top_k": 8}
    spec = make_method("ssd", rounds=rounds)
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0, **sampling))
    with torch.inference_mode():
        slow = [SlowLines(decoder, row) for row in (4, 1)]
        expected = [image.draw() for image in slow]
    found = generate(models, spec, [4, 1], **sampling)
    assert found.codes.tolist() == expected
    assert found.target_forwards.tolist() == [image.num_forwards for image in slow]


@pytest.mark.parametrize(("rounds", "expected"), [(0, 10), (1, 19), (2, 28), (3, 36)])
def test_a_line_takes_one_forward_pass_and_one_more_per_round(rounds, expected):
    """8 lines of 8 tokens: two parts of the first line, then seven lines, after the prefill."""
    schedule = LineSchedule.of(TargetConfig(grid=8), 3, rounds, torch.device("cpu"))
    assert schedule.longest == 7 + (rounds > 2)  # three rounds emit three drafts of the first line, and its end is next
    position, num_forwards, firsts = 1, 1, []
    while position < 64:
        num_forwards += 1
        if schedule.is_first[position]:
            firsts.append(position)
        position = int(schedule.ends[position]) + 1 if schedule.is_last[position] else position + 1
    assert num_forwards == expected
    assert firsts[:3] == ([1, 5, 9] if rounds < 3 else [1, 4, 7])


@pytest.mark.parametrize(("tree", "temperature"), [("chain2", 1.0), ("chain4", 0.0), ("chain4k2d2", 1.0)])
def test_heads_as_first_drafts_of_jacobi_decoding_change_no_token(models, tree, temperature):
    spec = MethodSpec.of("jacobi_heads", drafts="jacobi_heads", tree=tree)
    found = generate(models, spec, temperature=temperature)
    expected = generate(models, make_method("autoregressive"), temperature=temperature)
    assert torch.equal(found.codes, expected.codes)
    assert found.target_forwards.sum() < expected.target_forwards.sum()


def test_heads_are_stored_and_belong_to_one_target(tmp_path):
    target = TargetModel(TargetConfig(32, 1, 2, 12, grid=4))
    heads = make_heads(target, num_right=3)
    save_model(tmp_path / "target.safetensors", target)
    save_model(tmp_path / "heads.safetensors", heads)
    loaded = load_model(tmp_path / "heads.safetensors", ShiftHeads)
    assert loaded.config.shifts == (1, 2, 3, 4)
    hidden, embedded = torch.randn(2, 5, 32), torch.randn(2, 5, 32)
    with torch.inference_mode():
        for name in ("right", "below"):
            assert torch.equal(getattr(loaded, name)(hidden, embedded), getattr(heads, name)(hidden, embedded))
        models = load_decoding_models(tmp_path / "target.safetensors", heads=tmp_path / "heads.safetensors")
        prepared = models.parts["heads"]
        # the same products in another order of addition; values are of order 1, sums have 85 terms
        torch.testing.assert_close(prepared.below(hidden, embedded), heads.below(hidden, embedded), atol=1e-5, rtol=0)
    save_model(tmp_path / "wide.safetensors", TargetModel(TargetConfig(32, 1, 2, 12, grid=4, columns=6)))
    with pytest.raises(ValueError, match=r"heads\.safetensors: line_width should be 6 as in .*found 4"):
        load_decoding_models(tmp_path / "wide.safetensors", heads=tmp_path / "heads.safetensors")


@pytest.mark.parametrize(
    ("sizes", "parts", "words"),
    [
        ({}, {"drafts": "heads", "tree": "chain5"}, "a chain of at most 4 drafts, a line of the image, got 5"),
        ({}, {"drafts": "heads", "tree": "chain3k2d1"}, "need a chain, got tree chain3k2d1"),
        ({"small_grid": 2}, {"drafts": "heads", "tree": "chain3"}, "without a smaller image before them, got"),
        ({"columns": 40}, {"drafts": "ssd", "rounds": 1}, "need lines of at most 32 tokens, got 40"),
    ],
)
def test_parts_that_do_not_fit_are_refused(sizes, parts, words):
    with pytest.raises(ValueError, match=words):
        make_decoder(make_models(**sizes), MethodSpec.of("mine", **parts), SamplingConfig())


def test_methods_without_heads_and_with_a_wrong_number_of_rounds_are_refused(models):
    with pytest.raises(ValueError, match="method ssd needs shift heads, got none"):
        make_decoder(type(models)(models.target), make_method("ssd"), SamplingConfig())
    with pytest.raises(ValueError, match="rounds of ssd must be an integer >= 0, got -1"):
        make_method("ssd", rounds=-1)
