"""Accepted paths: what a recorder sees is what was decoded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conftest import make_models
from lantern.decoding import make_decoder
from lantern.draft_tree import join_trees, static_tree
from lantern.generation import decode_timed
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import JointTree, check_choices, tree_choices
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder
from lantern_pipeline.metrics.accepted_paths import PathRecorder, record_paths

ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)
PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]
NUM_TOKENS = 16


def decoder_of(drafts, tree, temperature=1.0):
    sampling = SamplingConfig(temperature=temperature, cfg_scale=2.0)
    return make_decoder(make_models(), MethodSpec.of("a", tree=tree, drafts=drafts, method_id="a"), sampling)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("drafts", "tree"),
    [
        ("coupled", "chain3k2d2"),
        ("sampled", "naive_extend_57"),
        ("jacobi", "chain5k2d1"),
        ("hybrid", "chain4+chain2k2d1"),
    ],
)
def test_paths_and_the_targets_own_tokens_are_the_whole_image(drafts, tree, temperature):
    decoder = decoder_of(drafts, tree, temperature)
    paths = record_paths(decoder, PROMPTS, ENCODER, run_seed=3, batch_size=2)
    assert decoder.observer is None
    assert sum(1 + max(map(len, both)) for both in paths) == len(PROMPTS) * (NUM_TOKENS - 1)  # all but the prefill's
    assert any(any(both) for both in paths)
    shape = decoder.spec.tree_shape
    jacobi = shape.jacobi if drafts == "hybrid" else shape if drafts == "jacobi" else ()
    drafter = shape.drafter if drafts == "hybrid" else () if drafts == "jacobi" else shape
    assert {path for path, _ in paths} <= {(), *jacobi} and {path for _, path in paths} <= {(), *drafter}


def test_paths_are_those_of_the_deepest_accepted_nodes():
    decoder = decoder_of("coupled", "naive_extend_57")
    paths = record_paths(decoder, PROMPTS[:1], ENCODER, run_seed=3, batch_size=1)
    nodes = decode_timed(decoder, PROMPTS[:1], ENCODER, 3)[0].accepted_nodes[0]
    names = [(), *check_choices(tree_choices("naive_extend_57"))]
    assert [path for _, path in paths][:-1] == [names[node] for node in nodes][:-1]  # the last may leave the image


def test_both_parts_of_a_step_are_told_apart():
    shape = JointTree(tree_choices("chain2k2d1"), ((0,), (1,), (0, 0)))
    tree = join_trees(static_tree(shape.jacobi), static_tree(shape.drafter))
    recorder = PathRecorder(SimpleNamespace(spec=SimpleNamespace(tree_shape=shape, drafts="hybrid"), num_tokens=9))
    is_accepted = torch.zeros(4, tree.num_nodes, dtype=torch.bool)
    is_accepted[0, [2, 4, 6]] = True  # Jacobi's second guess; the draft model's first and the one below it
    is_accepted[1, [1, 3, 5]] = True  # both of Jacobi's first guesses; the draft model's second
    is_accepted[2, 3] = True  # below a guess that is not accepted
    is_accepted[3] = True  # a complete image
    positions = torch.tensor([[1], [7], [1], [9]]) + tree.depths
    recorder(SimpleNamespace(proposal=SimpleNamespace(tree=tree), is_accepted=is_accepted, positions=positions))
    assert recorder.paths == [((1,), (0, 0)), ((0,), (1,)), ((), ())]  # the second image has one place for a draft
