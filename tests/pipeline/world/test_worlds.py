"""Tests of the regular expression of a world's captions, and of the warning about prompts that it does not match."""

import re
from dataclasses import replace
from itertools import permutations

import pytest

from helpers.paths import ROOT
from lantern_models.cards.card import read_card
from lantern_models.text.encoders import make_text_encoder
from lantern_pipeline.world.worlds import WORLDS

SHORT = {"scenes": "a small red ring on sand", "fashion": "a dark patterned dress"}
SHIPPED = {"scenes": "embedded", "fashion": "fashion"}  # world -> model


@pytest.mark.parametrize("name", WORLDS)
def test_the_expression_matches_a_text_if_and_only_if_it_names_attributes(name):
    world = WORLDS[name]
    orders = {" ".join(words) for words in permutations(SHORT[name].split())}
    others = [world.example, *(f"{SHORT[name]} {word}" for word in world.vocabulary), "light plain trousers", ""]
    found = {text for text in (*orders, *others) if re.fullmatch(world.captions, text)}
    assert found == {text for text in (*orders, *others) if world.attributes_of(text) is not None}
    assert {SHORT[name], world.example} <= found and len(found) <= 3


@pytest.mark.parametrize("name", WORLDS)
def test_known_words_in_another_order_are_named_once_with_the_form_of_captions(name, caplog):
    encoder = make_text_encoder(read_card(ROOT / "models" / SHIPPED[name]).prompts)
    encoder.encode([SHORT[name], f"{SHORT[name].title()}."])
    assert not caplog.records
    turned = " ".join(reversed(SHORT[name].split()))
    for _ in range(2):
        encoder.encode([SHORT[name], turned])
    (record,) = caplog.records
    said = f"prompt '{turned}' is no caption that the model has learnt: its image may show anything; captions are: "
    assert record.getMessage() == said + WORLDS[name].captions


def test_an_encoder_without_an_expression_takes_any_text(caplog):
    prompts = read_card(ROOT / "models" / "embedded").prompts
    for card in ({"captions": None}, {"captions": None, "vocabulary": None}):
        make_text_encoder(replace(prompts, **card)).encode(["sand on ring"])
    assert not caplog.records
