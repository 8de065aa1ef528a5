"""Tests of PJD: images of a plain loop that runs one token per pass and verifies one draft after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from helpers.tiny_models import generate, make_models, make_prompts
from lantern.decoding import Decoder, make_decoder
from lantern.kv_cache import window_table
from lantern.methods import make_method
from lantern.noise import TARGET, NoiseField, Uniform
from lantern.sampling import SamplingConfig, filter_logits
from lantern_methods.parallel_lines import lines_of
from lantern_methods.pjd import ACCEPT, INITIAL, REDRAW


@dataclass
class SlowImage:
    """One image that is decoded by PJD's rule in plain Python, with one token in each pass of the target.

    Attributes:
        decoder: the decoder whose models, parameters and noise are used.
        tokens: position -> emitted token.
        drafts: position -> draft.
        draft_probs: position -> distribution of the draft, (vocab,).
        placeholders: positions whose entry in the cache is that of a placeholder.
        num_steps: number of steps so far.
    """

    decoder: Decoder
    tokens: dict[int, int] = field(default_factory=dict)
    drafts: dict[int, int] = field(default_factory=dict)
    draft_probs: dict[int, torch.Tensor] = field(default_factory=dict)
    placeholders: set[int] = field(default_factory=set)
    num_steps: int = 0

    def draw(self, row: int) -> list[int]:
        """Decode the image of prompt `row`, and return its tokens."""
        decoder, config = self.decoder, self.decoder.target.config
        streams = decoder.noise_streams
        self.noise = NoiseField(1, decoder.num_tokens, config.vocab_size, streams)
        self.noise.fill([0], [decoder.make_noise(7, f"prompt-{row}")])
        features, mask = (part[[row]] for part in make_prompts(decoder.models, 5))
        self.num_text = mask.shape[1]
        num_slots = self.num_text + decoder.num_tokens
        hidden, self.cache = decoder.target.prefill(*decoder.target.with_null(features, mask), num_slots)
        self.tokens[0] = self.sample(self.probs(hidden, 0), 0)
        for position in range(decoder.num_tokens):
            code = self.tokens[0]
            if not decoder.sampling.is_greedy:
                code = int(self.uniform(INITIAL, position) * config.num_codes)
                code = config.num_codes if config.ends_line(position) else code
            self.drafts[position] = code
            self.draft_probs[position] = torch.eye(config.vocab_size)[code]
        self.lines = lines_of(config, decoder.spec["window"])
        self.counts = [1] + [0] * (len(self.lines) - 1)
        while len(self.tokens) < decoder.num_tokens:
            self.step()
        return [self.tokens[position] for position in range(decoder.num_tokens)]

    def uniform(self, stream: Uniform, position: int) -> float:
        slot = torch.tensor([[self.num_steps % 64]])
        return float(self.noise.fresh(stream, torch.tensor([[position]]), slot))

    def probs(self, hidden: torch.Tensor, position: int) -> torch.Tensor:
        sampling = self.decoder.sampling
        place = torch.tensor([[position]])
        logits = self.decoder.target.guided_logits(hidden[:, :, -1:], sampling.cfg_scale, place)[0, 0]
        if sampling.is_greedy:
            return torch.eye(len(logits))[int(logits.argmax())]
        return filter_logits(logits, sampling).softmax(-1)

    def sample(self, probs: torch.Tensor, position: int) -> int:
        if self.decoder.sampling.is_greedy:
            return int(probs.argmax())
        return int((probs.log() + self.noise.gumbel(TARGET, torch.tensor([[position]]))[0, 0]).argmax())

    def feed(self, position: int, token: int, line: int) -> torch.Tensor:
        """Run one token of a line, which sees its line, tokens of other lines and placeholders."""
        first, width = self.lines[line].first, self.lines[line].width
        seen = {*self.known, *self.placeholders, *range(first, first + width)}
        sees = [place <= position and place in seen for place in range(self.decoder.num_tokens)]
        mask = self.cache.mask(window_table(torch.tensor([[sees]]), torch.float32), torch.tensor([self.num_text]))
        slot = torch.tensor([[self.num_text + position]])
        return self.decoder.target.extend(self.cache, torch.tensor([[token]]), slot, slot, mask)

    def step(self) -> None:
        """Run the tokens of all open lines, line by line, then verify their drafts."""
        self.known = dict(self.tokens)
        unfinished = [count < line.width for count, line in zip(self.counts, self.lines, strict=True)]
        before = [0, *self.counts]
        is_open = [unfinished[i] and before[i] >= line.opens_at for i, line in enumerate(self.lines)]
        for i, line in enumerate(self.lines[1:], 1):
            if is_open[i] and self.counts[i] == 0 and unfinished[i - 1]:
                self.placeholders.add(line.first - 1)
        found = {}
        for i, line in enumerate(self.lines):
            last = line.first + line.width - 1
            if not unfinished[i] and last in self.placeholders:
                self.placeholders.remove(last)
                if self.counts[i + 1] > 0:  # the next line does not feed this token as its root
                    self.feed(last, self.known[last], i)
            if is_open[i]:
                is_top = not any(unfinished[:i])
                room = line.width - self.counts[i] if is_top else before[i] - self.counts[i]
                num_drafts = min(self.decoder.spec["max_drafts"], room)
                found[i] = (num_drafts, self.feed_line(i, num_drafts), is_top)
        for i, parts in found.items():
            self.verify(i, *parts)
        self.num_steps += 1

    def feed_line(self, number: int, num_drafts: int) -> list[torch.Tensor]:
        """Return the target's distributions from the next position of a line on, each (vocab,)."""
        line = self.lines[number]
        root = line.first + self.counts[number] - 1
        above = self.lines[line.above].first + self.counts[line.above] - 1
        is_missing = self.counts[number] == 0 and root in self.placeholders
        hidden = self.feed(root, self.known[above if is_missing else root], number)
        found = [self.probs(hidden, root + 1)]
        for position in range(root + 1, min(root + 1 + num_drafts, line.first + line.width - 1)):
            found.append(self.probs(self.feed(position, self.drafts[position], number), position + 1))
        return found

    def verify(self, number: int, num_drafts: int, probs: list[torch.Tensor], is_top: bool) -> None:
        """Verify the drafts of a line, emit its tokens, and sample new drafts."""
        line, first = self.lines[number], self.lines[number].first + self.counts[number]
        emitted = []
        residual = None
        for position, target in zip(range(first, first + num_drafts), probs, strict=False):
            draft, label = self.drafts[position], self.draft_probs[position]
            chance = self.uniform(ACCEPT, position) if not self.decoder.sampling.is_greedy else 0.0
            if target[draft] == 0 or chance > target[draft] / label[draft]:
                residual = (target - label).clamp(min=0)
                residual /= residual.sum()
                break
            emitted.append(draft)
        if is_top and self.counts[number] + len(emitted) < line.width:
            position = first + len(emitted)
            emitted.append(self.sample(probs[len(emitted)] if residual is None else residual, position))
        for position, target in enumerate(probs, first):
            self.draft_probs[position] = target
            self.drafts[position] = self.redraw(target, position)
        self.tokens.update(enumerate(emitted, first))
        self.counts[number] += len(emitted)

    def redraw(self, probs: torch.Tensor, position: int) -> int:
        if self.decoder.sampling.is_greedy:
            return int(probs.argmax())
        level = self.uniform(REDRAW, position) * float(probs.double().sum())
        passed = 0.0
        for code, prob in enumerate(probs.tolist()):
            passed += prob
            if passed > level:
                return code
        return len(probs) - 1


def compare(models, row: int = 2, temperature: float = 1.0, **parts) -> int:
    """Assert that the decoder's image equals that of the plain loop, and return its number of forward passes."""
    spec = make_method("pjd", **parts)
    sampling = SamplingConfig(temperature=temperature, top_k=8, cfg_scale=2.0)
    image = SlowImage(make_decoder(models, spec, sampling))
    with torch.inference_mode():
        expected = image.draw(row)
    found = generate(models, spec, [row], top_k=8, temperature=temperature)
    assert found.codes[0].tolist() == expected
    assert int(found.target_forwards) == 1 + image.num_steps
    assert found.step_lengths.sum() == models.target.config.num_image_tokens
    return 1 + image.num_steps


@pytest.mark.parametrize(
    ("window", "max_drafts", "temperature"), [(1, 1, 1.0), (1, 16, 0.0), (2, 2, 1.0), (3, 16, 1.0), (4, 2, 0.0)]
)
def test_images_are_those_of_a_loop_that_verifies_one_draft_after_the_other(models, window, max_drafts, temperature):
    for row in (4, 1):
        assert compare(models, row, temperature, window=window, max_drafts=max_drafts) < 16


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ({"grid": 7, "columns": 6}, 2),
        ({"grid": 6, "columns": 3, "line_end": 1}, 1),
        ({"columns": 5, "small_grid": 2}, 99),
        ({"columns": 5, "small_grid": 2}, 2),
        ({"grid": 3, "columns": 1}, 1),
    ],
)
def test_lines_of_an_image_that_is_no_square_follow_a_smaller_image(sizes, window):
    models = make_models(**sizes)
    for row in (0, 2):
        compare(models, row, window=window)


def test_a_row_of_a_batch_is_the_image_alone(models):
    spec = make_method("pjd", window=2)
    together = generate(models, spec, range(5), top_k=8)
    for row in range(5):
        alone = generate(models, spec, [row], top_k=8)
        assert torch.equal(alone.codes[0], together.codes[row])
        assert torch.equal(alone.target_forwards[0], together.target_forwards[row])


def test_greedy_decoding_of_one_line_after_the_other_is_autoregressive_decoding(models):
    expected = generate(models, make_method("autoregressive"), temperature=0.0)
    found = generate(models, make_method("pjd", window=4), temperature=0.0)
    assert torch.equal(found.codes, expected.codes)
    assert (found.target_forwards < expected.target_forwards).all()


def test_margins_of_greedy_decoding_are_those_of_autoregressive_decoding(models):
    """Each token has the margin of the step that emitted it; token 0 has that of the prefill."""
    found = []
    for spec in (make_method("autoregressive"), make_method("pjd", window=4)):
        decoder = make_decoder(models, spec, SamplingConfig(temperature=0.0, cfg_scale=2.0), records_margins=True)
        found.append(decoder.generate(*make_prompts(models, 2), [decoder.make_noise(7, name) for name in "ab"]).margins)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"window": 0}, "window of pjd must be an integer >= 1, got 0"),
        ({"max_drafts": 0}, "max_drafts of pjd must be an integer >= 1, got 0"),
        ({"max_drafts": None}, "pjd with drafts pjd and acceptance exact needs max_drafts, an integer"),
        ({"tree": "chain3"}, "pjd fills no tree with drafts, got tree chain3"),
        (
            {"acceptance": "additive", "k": 4, "delta": 0.1},
            "pjd has no tree of drafts to relax, got acceptance additive",
        ),
    ],
)
def test_parts_are_checked(parts, words):
    with pytest.raises(ValueError, match=words):
        make_method("pjd", **parts)
