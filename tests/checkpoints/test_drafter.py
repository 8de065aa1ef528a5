"""The LANTERN authors' drafters in every form that a repository may have them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from lantern.checkpoints.draft_embedding import find_embedding
from lantern.checkpoints.llamagen import read_draft, read_target
from lantern.checkpoints.native import save_model
from published_layouts import CONFIG, ORIGINAL, read_drafter_state, read_original, write_drafter, write_hugging_face


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_drafter_in_half_precision_becomes_float32(tmp_path, dtype):
    state = {name: tensor.to(dtype) for name, tensor in read_drafter_state().items()}
    model = read_draft(write_drafter(tmp_path / "drafter", state, torch_dtype="float16"), CONFIG)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.token_embedding.weight, state["embed_tokens.weight"].float())


def test_a_drafter_knows_its_grid_by_its_input_type_alone(tmp_path):
    missing = dict.fromkeys(["block_size", "cls_token_num", "caption_dim", "rope_base", "num_key_value_heads", "bias"])
    assert read_draft(write_drafter(tmp_path / "drafter", **missing), CONFIG).config.grid == 16


def test_a_drafter_in_the_old_pickle_format(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    torch.save(read_drafter_state(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    model = read_draft(folder, CONFIG)
    assert torch.equal(model.token_embedding.weight, read_drafter_state()["embed_tokens.weight"])


def test_a_drafter_in_safetensors_alone_and_beside_a_pickle(tmp_path):
    state = read_drafter_state()
    alone = write_hugging_face(tmp_path / "alone", state, "single", "drafter_config")
    assert torch.equal(read_draft(alone, CONFIG).token_embedding.weight, state["embed_tokens.weight"])
    both = write_drafter(tmp_path / "both")
    save_file({**state, "embed_tokens.weight": state["embed_tokens.weight"] + 1}, both / "model.safetensors")
    assert torch.equal(read_draft(both, CONFIG).token_embedding.weight, state["embed_tokens.weight"] + 1)
    given = read_draft(both / "pytorch_model.bin", CONFIG)
    assert torch.equal(given.token_embedding.weight, state["embed_tokens.weight"])


@pytest.mark.parametrize(
    ("copied", "expected"),
    [("output.weight", "head.weight"), ("tok_embeddings.weight", "token_embedding.weight"), (None, None)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_matrix_that_a_drafters_embedding_was_copied_from(tmp_path, copied, expected, dtype):
    original, state = read_original(), read_drafter_state()
    torch.manual_seed(0)
    source = torch.randn_like(original["output.weight"]) if copied is None else original[copied]
    drafter = write_drafter(tmp_path / "drafter", {**state, "embed_tokens.weight": source.to(dtype)})
    save_model(tmp_path / "target.safetensors", read_target(ORIGINAL, CONFIG))
    assert find_embedding(read_draft(drafter, CONFIG), tmp_path / "target.safetensors") == expected
