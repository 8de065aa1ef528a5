"""Models that fit each other, and records that do not depend on how they were made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conftest import make_models
from lantern import generation
from lantern.checkpoints.native import save_model
from lantern.decoding import Decoder
from lantern.generation import (
    generate_records,
    load_decoding_models,
    load_nearest_codes,
)
from lantern.io import save_tensors
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.prompts import Prompt
from lantern.records import load_records
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass", "a cat", "sand"])]
SAMPLING = {"cfg_scale": 2.0, "top_k": 6, "top_p": 1.0, "filter_order": "top_k_first"}


def save_table(path, num_columns=4, name="nearest_codes"):
    table = torch.arange(num_columns).expand(12, -1) + torch.arange(12)[:, None] + 1
    save_tensors(path, {name: (table % 12).int()}, {})
    return path


@pytest.fixture
def files(tmp_path):
    """Checkpoints of an untrained run."""
    config = {"dim": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 12, "grid": 4}
    target = TargetModel(TargetConfig(**config, num_text_tokens=5, caption_dim=16, ffn_multiple=16))
    save_model(tmp_path / "target.safetensors", target)
    save_model(tmp_path / "drafter.safetensors", DraftModel.from_target(target, 0))
    return SimpleNamespace(
        target=tmp_path / "target.safetensors",
        drafter=tmp_path / "drafter.safetensors",
    )


def test_a_file_without_a_table_is_named(tmp_path):
    path = save_table(tmp_path / "l2.safetensors", name="codes")
    with pytest.raises(ValueError, match=r"l2\.safetensors holds no tensor nearest_codes, found \['codes'\]"):
        load_nearest_codes(path)


def test_a_draft_model_of_another_target_is_refused(files, tmp_path):
    other = TargetModel(
        TargetConfig(dim=32, num_layers=1, num_heads=2, vocab_size=12, grid=2, num_text_tokens=5, caption_dim=16)
    )
    save_model(tmp_path / "other.safetensors", DraftModel.from_target(other, 0))
    with pytest.raises(
        ValueError, match=r"other\.safetensors: grid should be 4 as in .*found 2; train the drafter again"
    ):
        load_decoding_models(files.target, tmp_path / "other.safetensors")


def make_decoder(spec=None, temperature=1.0, **options):
    spec = spec or MethodSpec("near", "chain3", "coupled", "proximity", "paper", "l2", k=4, method_id="near-k4")
    sampling = SamplingConfig(temperature=temperature, **SAMPLING)
    return Decoder(make_models(), spec, sampling, **options)


def make_records(decoder, batch_size, prompts=PROMPTS, **options):
    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    return generate_records(decoder, prompts, encoder, run_seed=3, batch_size=batch_size, **options)


def test_records_do_not_depend_on_the_batches():
    whole = make_records(make_decoder(), 5)
    parts = make_records(make_decoder(), 2)
    assert whole.prompt_ids == parts.prompt_ids == ["p0", "p1", "p2", "p3", "p4"]
    for name in ("codes", "target_forwards", "step_lengths", "is_substituted"):
        assert torch.equal(getattr(whole, name), getattr(parts, name)), name
    assert (whole.step_lengths.sum(1) == 16).all()
    assert whole.substitutions.sum() > 0


def test_records_say_how_they_were_made():
    records = make_records(make_decoder(), 2)
    metadata = records.metadata
    assert metadata["method"]["method_id"] == "near-k4" and metadata["method"]["k"] == 4
    assert (metadata["temperature"], metadata["cfg_scale"], metadata["run_seed"]) == (1.0, 2.0, 3)
    assert records.margins.shape == (5, 0)


def test_autoregressive_records_hold_the_targets_margins():
    spec = MethodSpec("autoregressive", method_id="autoregressive")
    records = make_records(make_decoder(spec, records_margins=True), 3)
    assert records.margins.shape == (5, 16) and (records.margins > 0).all()
    assert (records.target_forwards == 16).all()


def test_an_interrupted_job_goes_on_behind_its_finished_images(monkeypatch, tmp_path):
    drawn, partial = [], tmp_path / "partial.safetensors"
    inner = generation.decode_timed

    def decode(decoder, prompts, encoder, run_seed):
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append([prompt.id for prompt in prompts])
        return inner(decoder, prompts, encoder, run_seed)

    often = {"partial": partial, "partial_every_s": 0.0}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generation, "decode_timed", decode)
        make_records(make_decoder(), 1, **often)
    assert drawn == [["p0"], ["p1"]] and load_records(partial).prompt_ids == ["p0", "p1"]
    drawn = [None] * 3
    monkeypatch.setattr(generation, "decode_timed", decode)
    resumed, undisturbed = make_records(make_decoder(), 2, **often), make_records(make_decoder(), 5)
    assert drawn[3:5] == [["p2", "p3"], ["p4"]]
    assert resumed.prompt_ids == undisturbed.prompt_ids
    assert torch.equal(resumed.codes, undisturbed.codes)
    assert torch.equal(resumed.step_lengths, undisturbed.step_lengths)
