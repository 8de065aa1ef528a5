"""Tests of generation: models must fit each other, and records do not depend on batches."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from helpers.tiny_models import make_models
from helpers.tiny_records import PROMPTS, make_records
from lantern import generation, noise
from lantern.codebook import load_nearest_codes
from lantern.decoding import make_decoder
from lantern.generation import decode_images, generate_records
from lantern.io import save_tensors
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern.prompts import Prompt
from lantern.records import load_records
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import DynamicTreeOptions, check_choices
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_models.text.words import WordEmbeddingEncoder

SAMPLING = {"cfg_scale": 2.0, "top_k": 6, "top_p": 1.0, "filter_order": "top_k_first"}


def test_a_file_without_a_table_is_named(tmp_path):
    save_tensors(tmp_path / "l2.safetensors", {"codes": torch.zeros(12, 4).int()}, {})
    with pytest.raises(ValueError, match=r"l2\.safetensors holds no tensor nearest_codes, found \['codes'\]"):
        load_nearest_codes(tmp_path / "l2.safetensors")


def test_a_draft_model_of_another_target_is_refused(tmp_path):
    target, drafter = tmp_path / "target.safetensors", tmp_path / "drafter.safetensors"
    save_model(target, TargetModel(TargetConfig(32, 1, 2, 12, grid=4)))
    save_model(drafter, DraftModel.from_target(TargetModel(TargetConfig(32, 1, 2, 12, grid=2)), 0))
    with pytest.raises(ValueError, match=r"drafter\.safetensors: grid should be 4 as in .*found 2"):
        load_decoding_models(target, drafter)


def generate_images(decoder, prompts, encoder, decode, run_seed=0):
    """Return records and pixels of an image per prompt, as `Model.generate` makes them."""
    records = generate_records(decoder, prompts, encoder, run_seed=run_seed, batch_size=16)
    grids = decoder.target.config.code_grids(records.codes)
    return records, decode_images(decode, grids, records.prompt_ids)


def decoder_of(spec=None, temperature=1.0, **options):
    spec = spec or MethodSpec.of(
        "near", tree="chain3", drafts="coupled", acceptance="proximity", neighbours="l2", k=4, method_id="near-k4"
    )
    sampling = SamplingConfig(temperature=temperature, **SAMPLING)
    return make_decoder(make_models(), spec, sampling, **options)


@pytest.mark.parametrize(
    ("drafts", "tree"),
    [("coupled", "naive_extend_57"), ("sampled", "chain3"), ("jacobi", "chain5k2d1"), ("hybrid", "chain4+chain2k2d2")],
)
def test_the_deepest_accepted_node_is_as_deep_as_its_step_is_long(drafts, tree):
    records = make_records(decoder_of(MethodSpec.of("a", tree=tree, drafts=drafts, method_id="a")), 2)
    shape = json.loads(json.dumps(records.metadata["tree_shape"]))
    parts = shape.values() if isinstance(shape, dict) else [shape]
    depths = torch.tensor([0, *(len(path) for part in parts for path in check_choices(part))])
    assert records.accepted_nodes.dtype == torch.int16 and records.accepted_nodes.shape == records.codes.shape
    assert records.accepted_nodes.max() > 0
    for nodes, lengths in zip(records.accepted_nodes.long(), records.step_lengths.long(), strict=True):
        num_steps = int((lengths > 0).sum()) - 1  # after the prefill
        assert (nodes[:num_steps] >= 0).all() and (nodes[num_steps:] == -1).all()
        found, emitted = depths[nodes[:num_steps]] + 1, lengths[1 : num_steps + 1]
        assert found[:-1].tolist() == emitted[:-1].tolist() and found[-1] >= emitted[-1]  # the image ends in a step


def test_records_say_how_they_were_made_and_autoregressive_ones_hold_the_targets_margins():
    records = make_records(decoder_of(), 2)
    metadata = records.metadata
    assert metadata["method"]["method_id"] == "near-k4" and metadata["method"]["k"] == 4
    assert (metadata["temperature"], metadata["cfg_scale"], metadata["run_seed"]) == (1.0, 2.0, 3)
    assert records.margins.shape == (5, 0) and records.substitutions.sum() > 0
    decoder = decoder_of(MethodSpec.of("autoregressive"), records_margins=True)
    counted = Counted(decoder)
    records = make_records(decoder, 2)
    assert records.margins.shape == (5, 16) and (records.margins > 0).all()
    assert (records.target_forwards == 16).all()
    assert counted.fills == [["p0", "p1"], ["p2", "p3"], ["p4"]] and counted.steps == 3 * 15


SPECS = {
    "autoregressive": MethodSpec.of("autoregressive"),
    "sampled": MethodSpec.of(
        "sampled", tree="chain3", drafts="sampled", acceptance="additive", neighbours="l2", k=4, delta=0.3
    ),
    "dynamic": MethodSpec.of(
        "dynamic", tree="dynamic", drafts="top", tree_shape=DynamicTreeOptions(num_nodes=9, depth=2, top_k=4)
    ),
    "jacobi": MethodSpec.of("jacobi", tree="chain6", drafts="jacobi"),
    "proximity": MethodSpec.of("near", tree="chain3", drafts="coupled", acceptance="proximity", neighbours="l2", k=4),
}


PARTS = ("codes", "target_forwards", "step_lengths", "is_substituted")


@pytest.mark.sensitive
@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        *((name, 1.0) for name in ("sampled", "dynamic", "jacobi", "proximity")),
        pytest.param("autoregressive", 1.0, marks=pytest.mark.slow),
        pytest.param("jacobi", 0.0, marks=pytest.mark.slow),
    ],
)
def test_images_depend_neither_on_the_row_that_they_take_over_nor_on_the_window_of_their_noise(
    name, temperature, monkeypatch
):
    """Six prompts in two and five batch rows, compared with each prompt in its own batch."""
    prompts = [Prompt(f"p{i}", f"{PROMPTS[i % 5].text} {i}") for i in range(6)]
    decoder, held = decoder_of(SPECS[name], temperature), []
    allocate = decoder.allocate
    alone = [make_records(decoder, 1, [prompt]) for prompt in prompts]
    for batch_size in (5, 2):
        if batch_size == 2:
            monkeypatch.setattr(noise, "WHOLE_BYTES", 0)
            monkeypatch.setattr(noise, "WINDOW", 7)
            decoder.allocate = lambda num_rows: held.append(allocate(num_rows)) or held[0]
        found = make_records(decoder, batch_size, prompts)
        assert found.prompt_ids == [prompt.id for prompt in prompts]
        for part in PARTS:
            expected = torch.cat([getattr(record, part) for record in alone])
            assert torch.equal(getattr(found, part), expected), part
    assert held[0].noise.window == 7


class Counted:
    """Decoder that counts its steps, and for each fill the prompts and the steps before it."""

    def __init__(self, decoder):
        self.steps, self.fills, self.steps_before = 0, [], []
        self._step, self._fill = decoder.step, decoder.fill
        decoder.step, decoder.fill = self.step, self.fill

    def step(self, state):
        self.steps += 1
        return self._step(state)

    def fill(self, state, rows, features, mask, fields):
        self.fills.append([field.prompt_id for field in fields])
        self.steps_before.append(self.steps)
        self._fill(state, rows, features, mask, fields)


def test_rows_do_not_wait_for_the_slowest_image():
    prompts = [Prompt(f"p{i}", PROMPTS[i % 5].text) for i in range(20)]
    decoder = decoder_of()
    counted = Counted(decoder)
    steps = make_records(decoder, 4, prompts).target_forwards - 1
    assert counted.fills[0] == ["p0", "p1", "p2", "p3"]
    assert [i for ids in counted.fills for i in ids] == [prompt.id for prompt in prompts]
    in_batches = steps.view(5, 4).max(1).values.sum()
    assert steps.sum() / 4 <= counted.steps < in_batches


def test_rows_take_prompts_in_groups_and_the_last_ones_at_once():
    """With 24 batch rows, prompts are filled in groups of three. A single last prompt takes the first row."""
    prompts = [Prompt(f"p{i}", f"{PROMPTS[i % 5].text} {i}") for i in range(30)]
    decoder, fills = decoder_of(), {}
    for count in (25, 30):
        counted = Counted(decoder)
        steps = make_records(decoder, 24, prompts[:count]).target_forwards[:24] - 1
        fills[count] = list(zip(map(len, counted.fills), counted.steps_before, strict=True))
    first, _, third, *_ = sorted(steps.tolist())
    assert first < third
    assert fills[25] == [(24, 0), (1, first)]
    assert fills[30][1][0] >= 3 and fills[30][1][1] == third


@pytest.mark.parametrize("name", ["autoregressive", "proximity"])
def test_seconds_add_up_to_the_time_of_decoding(name, monkeypatch):
    """The clock advances by one second per reading. Each turn reads it twice, so it lasts one second.

    Autoregressive images of a batch end together, so the last of five has its own turn.
    """
    ticks = itertools.count()
    decoder = decoder_of(SPECS[name])
    counted = Counted(decoder)
    monkeypatch.setattr(generation.time, "perf_counter", lambda: float(next(ticks)))
    seconds = make_records(decoder, 2).seconds
    assert (seconds > 0).all()
    assert seconds.sum().item() == pytest.approx(next(ticks) // 2)
    assert len(counted.fills) > 2


def test_noise_is_made_ahead_for_as_many_prompts_as_there_are_rows(monkeypatch):
    decoder, asked = decoder_of(), []
    submit = generation.ThreadPoolExecutor.submit
    monkeypatch.setattr(
        generation.ThreadPoolExecutor,
        "submit",
        lambda pool, make, seed, prompt_id: (asked.append(prompt_id), submit(pool, make, seed, prompt_id))[1],
    )
    coming = generation._with_noise(decoder, PROMPTS, 3, 2)
    for place, expected in enumerate(([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])):
        prompt, image = next(coming)
        assert prompt.id == image.prompt_id == f"p{place}" and asked == [f"p{i}" for i in expected]
    coming.close()


def test_nearly_no_accepted_draft_is_said_once_if_there_are_enough_drafts(caplog):
    spec = MethodSpec.of("a", tree="chain3", drafts="top", method_id="a")
    decoder = decoder_of(spec, temperature=0.0)
    decoder.drafter.draft = DraftModel(decoder.models.draft.config)  # untrained
    for weight in decoder.drafter.draft.parameters():
        weight.data.zero_()
    decoder.drafter.draft.prepare_for_decoding()
    make_records(decoder, 2, PROMPTS[:2])  # at most 90 drafts
    assert "nearly none" not in caplog.text
    make_records(decoder, 8)
    make_records(decoder_of(), 8)
    (message,) = [record.getMessage() for record in caplog.records if "nearly none" in record.getMessage()]
    assert "the draft model or the heads are trained for this target" in message


def test_the_text_encoder_and_the_image_tokenizer_name_themselves():
    spec = MethodSpec.of("a", tree="chain3", drafts="jacobi", method_id="a")
    prompts = [Prompt("first", "a"), Prompt("second", "b")]

    class Encoder:
        def __init__(self, value):
            self.value = value

        def encode(self, texts):
            features = torch.randn(len(texts), 5, 16)
            features[-1, 0, 0] = self.value
            return features, torch.ones(len(texts), 5, dtype=torch.bool)

    def decode(codes):
        return torch.full((len(codes), 3, 4, 4), torch.nan)

    for value, message in ((torch.inf, "features of prompt second .* text encoder"), (0, "prompt first .* tokenizer")):
        with pytest.raises(FloatingPointError, match=message):
            generate_images(decoder_of(spec), prompts, Encoder(value), decode)


def test_pixels_are_clamped_and_each_image_is_decoded_by_itself():
    decoder, shapes = decoder_of(), []

    def decode(codes):
        shapes.append(tuple(codes.shape))
        return torch.linspace(-3, 3, 2 * 2).view(1, 1, 2, 2).expand(len(codes), 3, 2, 2)

    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    records, pixels = generate_images(decoder, PROMPTS[:2], encoder, decode, run_seed=3)
    assert pixels[1, :, :, 0].tolist() == [[0, 0], [255, 255]] and pixels.shape == (2, 2, 2, 3)
    assert pixels.dtype == torch.uint8 and shapes == [(1, 4, 4)] * 2
    assert torch.equal(records.codes, make_records(decoder_of(), 2, PROMPTS[:2]).codes)


def test_an_interrupted_job_goes_on_behind_its_finished_images(tmp_path):
    partial = tmp_path / "partial.safetensors"
    often = {"partial": partial, "partial_every_s": 0.0}
    decoder = decoder_of()
    counted = Counted(decoder)
    fill = decoder.fill

    def fill_twice(*arguments):
        if len(counted.fills) == 2:
            raise KeyboardInterrupt
        fill(*arguments)

    decoder.fill = fill_twice
    with pytest.raises(KeyboardInterrupt):
        make_records(decoder, 1, **often)
    assert counted.fills == [["p0"], ["p1"]] and load_records(partial).prompt_ids == ["p0", "p1"]
    decoder = decoder_of()
    counted = Counted(decoder)
    resumed, undisturbed = make_records(decoder, 2, **often), make_records(decoder_of(), 5)
    assert counted.fills == [["p2", "p3"], ["p4"]]
    assert resumed.prompt_ids == undisturbed.prompt_ids
    assert torch.equal(resumed.codes, undisturbed.codes)
    assert torch.equal(resumed.step_lengths, undisturbed.step_lengths)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", {1: [1], 5: [5], 16: [16]}), ("cuda", {1: [1], 5: [4, 1], 16: [16], 23: [16, 4, 2, 1]})],
)
def test_a_gpu_takes_new_prompts_in_groups_of_few_sizes(device, expected):
    for num_prompts, sizes in expected.items():
        parts = generation._refills(num_prompts, torch.device(device))
        assert [part.stop - part.start for part in parts] == sizes
        assert [row for part in parts for row in range(num_prompts)[part]] == list(range(num_prompts))


def test_rows_that_are_filled_in_groups_give_the_same_images(monkeypatch):
    decoder = decoder_of()
    expected = make_records(decoder, 4)
    monkeypatch.setattr(generation, "_refills", lambda number, _: [slice(row, row + 1) for row in range(number)])
    found = make_records(decoder, 4)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.step_lengths, expected.step_lengths)
