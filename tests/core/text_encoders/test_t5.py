"""Tests of the T5 encoder on a tiny random T5 in the published layout: parity with transformers, caches, errors."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from helpers.tiny_t5 import DIM, save_t5
from lantern_models.text.t5 import T5TextEncoder, rotate_to_left_padding

MAX_TOKENS = 12


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    save_t5(folder)
    return folder


@pytest.fixture
def broken(t5, tmp_path):
    return shutil.copytree(t5, tmp_path / "t5")


def direct(folder, texts, dtype):
    """Return features as transformers makes them from clean texts, (texts, tokens, dim) right-padded, and the mask."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokens = tokenizer(texts, max_length=MAX_TOKENS, padding="max_length", truncation=True, return_tensors="pt")
    # The reference's transformers knew no fused attention, which rounds elsewhere; in float32 that does not matter.
    attention = "eager" if dtype == torch.bfloat16 else "sdpa"
    model = transformers.T5EncoderModel.from_pretrained(
        folder, dtype=dtype, local_files_only=True, attn_implementation=attention
    ).eval()
    with torch.no_grad():
        output = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    return output.last_hidden_state.float(), tokens["attention_mask"].bool()


TEXTS = ["a red cat on the grass", "a blue dog", "the dog " * 10, "zebra"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_are_those_of_transformers_rotated_to_the_end(t5, dtype):
    expected, expected_mask = direct(t5, [text.strip() for text in TEXTS], dtype)
    features, mask = T5TextEncoder(t5, caption_dim=DIM, max_tokens=MAX_TOKENS, dtype=dtype).encode(TEXTS)
    assert features.shape == (len(TEXTS), MAX_TOKENS, DIM) and features.dtype == torch.float32
    assert mask.dtype == torch.bool and mask.sum(1).tolist() == expected_mask.sum(1).tolist()
    for row, length in enumerate(expected_mask.sum(1).tolist()):
        assert mask[row, MAX_TOKENS - length :].all() and not mask[row, : MAX_TOKENS - length].any()
        assert (features[row, : MAX_TOKENS - length] == 0).all()
        found, wanted = features[row, MAX_TOKENS - length :], expected[row, :length]
        if dtype == torch.float32:
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(found, wanted) and torch.equal(found, found.bfloat16().float())


def test_weights_are_kept_in_bfloat16_without_the_decoder(t5):
    """The features show that the weights are those of the file."""
    model = T5TextEncoder(t5, max_tokens=MAX_TOKENS)._model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any("decoder" in name for name, _ in model.named_parameters())


def test_captions_are_cleaned_first_and_cut_ones_are_named(t5, caplog):
    encoder = T5TextEncoder(t5, max_tokens=MAX_TOKENS)
    texts = ["A RED   cat", "a red cat", "the " * 11, "the " * 12, "jc6640"]
    ids, mask, is_truncated = encoder.tokenize(texts)
    assert torch.equal(ids[0], ids[1])
    assert is_truncated.tolist() == [False, False, False, True, False]
    assert mask.sum(1).tolist() == [4, 4, MAX_TOKENS, MAX_TOKENS, 1]
    encoder.encode(texts)  # does not warn again
    assert [record.getMessage() for record in caplog.records] == [
        f"1 of 5 prompts are cut to max_tokens = {MAX_TOKENS} tokens, the first is {'the ' * 12!r}"
    ]
    assert ids[3, -1] == 1 and ids[4].tolist() == [1] + [0] * (MAX_TOKENS - 1)


def test_features_do_not_depend_on_the_batch(t5):
    encoder = T5TextEncoder(t5, max_tokens=MAX_TOKENS, dtype=torch.float32)
    together, _ = encoder.encode(TEXTS)
    alone, _ = encoder.encode(TEXTS[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-5, atol=1e-6)


def test_pads_move_to_the_front_and_are_zero_even_where_the_model_gave_nan():
    features = torch.arange(1.0, 9.0).view(2, 4, 1)
    features[0, 3] = torch.nan
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    rotated, left = rotate_to_left_padding(features, mask)
    assert rotated[..., 0].tolist() == [[0, 0, 1, 2], [5, 6, 7, 8]]
    assert left.tolist() == [[False, False, True, True], [True, True, True, True]]


def test_flan_t5_xls_repository(t5, tmp_path):
    """It has a separate head, untied embeddings, and an index with two embeddings that are in no shard."""
    from safetensors.torch import load_file, save_file

    state = load_file(t5 / "model.safetensors")
    state["lm_head.weight"] = torch.randn_like(state["shared.weight"])
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(t5 / name, tmp_path / name)
    edit_config(tmp_path, tie_word_embeddings=False)
    keys = sorted(state)
    places = {}
    for number, part in enumerate((keys[::2], keys[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({key: state[key] for key in part}, tmp_path / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    absent = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    assert not set(absent) & set(state)
    index = {"metadata": {}, "weight_map": {**places, **dict.fromkeys(absent, places["shared.weight"])}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    expected, _ = T5TextEncoder(t5, max_tokens=MAX_TOKENS).encode(TEXTS)
    found, _ = T5TextEncoder(tmp_path, max_tokens=MAX_TOKENS).encode(TEXTS)
    assert torch.equal(found, expected)


def test_weights_that_are_not_finite_are_refused(broken):
    from safetensors.torch import load_file, save_file

    state = load_file(broken / "model.safetensors")
    state["encoder.final_layer_norm.weight"][3] = torch.nan
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"encoder\.final_layer_norm\.weight should hold finite numbers, found 1 of 16"
    ):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)


def test_pickled_weights_are_read(broken):
    from safetensors.torch import load_file

    torch.save(load_file(broken / "model.safetensors"), broken / "pytorch_model.bin")
    expected, _ = T5TextEncoder(broken, max_tokens=MAX_TOKENS).encode(TEXTS)
    (broken / "model.safetensors").unlink()
    found, _ = T5TextEncoder(broken, max_tokens=MAX_TOKENS).encode(TEXTS)
    assert torch.equal(found, expected)


class Malicious:
    def __reduce__(self):
        return print, ("a pickle ran code",)


def test_a_pickle_that_runs_code_is_refused(broken, capsys):
    (broken / "model.safetensors").unlink()
    torch.save({"shared.weight": Malicious()}, broken / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_truncated_or_missing_file_is_named(broken, name):
    content = (broken / name).read_bytes()
    (broken / name).write_bytes(content[: len(content) // 2])
    named = "the weights in" if name.startswith("model") else name
    with pytest.raises(ValueError, match=named):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)
    (broken / name).unlink()
    with pytest.raises(OSError, match=name):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_another_model_or_width_is_refused(broken):
    with pytest.raises(ValueError, match=rf"d_model should be 2048 .* found {DIM}"):
        T5TextEncoder(broken, caption_dim=2048)
    d_ff = json.loads((broken / "config.json").read_text())["d_ff"]
    edit_config(broken, d_ff=32)
    with pytest.raises(ValueError, match="cannot be read"):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)
    edit_config(broken, d_ff=d_ff, num_layers=3)
    with pytest.raises(ValueError, match=r"lack the tensor encoder\.block\.2"):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)
    edit_config(broken, model_type="bert")
    with pytest.raises(ValueError, match="model_type should be t5, found 'bert'"):
        T5TextEncoder(broken, max_tokens=MAX_TOKENS)
