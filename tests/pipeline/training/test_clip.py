from dataclasses import dataclass

import pytest
import torch

from helpers.paths import ROOT
from lantern.models.stored import load_model, read_report
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.training import clip
from lantern_pipeline.training.clip import RECIPE, ClipTrainer, make_config, retrieval_accuracy, train_clip
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer

COLOURS = {"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1), "white": (1, 1, 1)}


@dataclass
class FlatColours:
    """Image source that a few steps suffice to learn: one colour plus noise, or two halves of different colours."""

    image_size: int = 32
    num_train: int = 64
    vocabulary: tuple[str, ...] | None = (*COLOURS, "over")
    splits: tuple[str, ...] = ("train", "val", "unseen")

    def _pair(self, index):
        names = list(COLOURS)
        return names[index % 4], names[index // 4 % 4]

    def captions(self, split, indices):
        return [" over ".join(self._pair(i)) for i in indices]

    def images(self, split, indices):
        images = torch.empty(len(indices), 3, 32, 32)
        for row, i in enumerate(indices):
            generator = torch.Generator().manual_seed(i + 1000 * (split != "train"))
            top, bottom = (torch.tensor(COLOURS[name]).float()[:, None, None] for name in self._pair(i))
            images[row, :, :16], images[row, :, 16:] = top, bottom
            images[row] += 0.2 * torch.randn(3, 32, 32, generator=generator)
        return images.clamp(-1, 1)


SETTINGS = {
    "num_steps": 40,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "width": 8,
    "embed_dim": 16,
    "num_eval": 32,
}


def test_training_lowers_the_loss_and_beats_chance():
    model, report = train_clip(FlatColours(), SETTINGS, seed=0)
    assert report["history"][0]["loss"] > report["final_loss"]
    # chance is about 2 of 32 here (16 captions, each twice); seven times that cannot happen by luck
    assert report["val_image_to_text_accuracy"] > 0.45
    assert report["val_text_to_image_accuracy"] > 0.45
    assert not model.training
    matching = ClipScorer.from_model(model).score(
        FlatColours().images("val", range(8)), FlatColours().captions("val", range(8))
    )
    other = ClipScorer.from_model(model).score(
        FlatColours().images("val", range(8)), FlatColours().captions("val", range(5, 13))
    )
    assert matching.mean() > other.mean() + 0.2


def test_a_source_without_unseen_combinations_is_not_measured_on_them():
    _, report = train_clip(FlatColours(splits=("train", "val", "seen")), {**SETTINGS, "num_steps": 1}, seed=0)
    assert {key.split("_")[0] for key in report if key.endswith("accuracy")} == {"val"}


def test_a_caption_stands_once_in_a_batch():
    source = FlatColours()
    trainer = ClipTrainer(ClipModel(make_config(source, SETTINGS)), source, {**SETTINGS, "batch_size": 64}, seed=0)
    for step in range(5):
        indices, captions = trainer._draw_batch(step)
        assert len(set(captions)) == len(captions) == len(indices) <= 16
        assert captions == source.captions("train", indices)
        assert trainer._draw_batch(step) == (indices, captions)  # a pure function of the step


def test_a_resumed_run_equals_an_undisturbed_one():
    source, settings = FlatColours(), {**SETTINGS, "num_steps": 4}

    def new_trainer():
        torch.manual_seed(0)
        return ClipTrainer(ClipModel(make_config(source, settings)), source, settings, seed=0)

    whole = new_trainer()
    run_training(whole, 4, name="clip")
    first = new_trainer()
    for i in range(2):
        first.step(i)
    second = new_trainer()
    second.load_state_dict(first.state_dict())
    for i in range(2, 4):
        second.step(i)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_the_caller_s_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train_clip(FlatColours(), {**SETTINGS, "num_steps": 1}, seed=0)
    assert torch.equal(torch.rand(1), expected)


def test_untrained_retrieval_is_near_chance():
    torch.manual_seed(0)
    source = SceneSource(0, num_train=10)
    config = ClipConfig(source.vocabulary, embed_dim=16, width=4, text_width=32, text_layers=1)
    accuracy = retrieval_accuracy(ClipScorer.from_model(ClipModel(config)), source, "val", 64)
    assert (
        accuracy["image_to_text_accuracy"] <= 0.15
    )  # chance 1 / 32; more than 9 of 64 would come up once in ten thousand


def test_an_open_source_lends_its_most_frequent_words():
    source = FlatColours(vocabulary=None)
    config = make_config(source, SETTINGS)
    assert config.is_open_vocabulary
    assert config.vocabulary[0] == "over"
    assert set(config.vocabulary) == {*COLOURS, "over"}


def test_matrices_decay_and_vectors_do_not():
    trainer = ClipTrainer(ClipModel(make_config(FlatColours(), SETTINGS)), FlatColours(), SETTINGS, seed=0)
    (adamw,) = trainer.optimiser.parts
    decay = {parameter: group["weight_decay"] for group in adamw.param_groups for parameter in group["params"]}
    found = {(parameter.ndim >= 2, decay[parameter]) for parameter in trainer.model.parameters()}
    assert found == {(True, 0.01), (False, 0.0)} and 2 in {parameter.ndim for parameter in decay}


@pytest.mark.parametrize(("num_steps", "warmup"), [(3, 1), (40, 4)])
def test_the_rate_rises_for_a_tenth_of_the_steps_and_for_one_at_least(monkeypatch, num_steps, warmup):
    asked = []
    monkeypatch.setattr(clip, "cosine_rate", lambda *arguments, **options: asked.append((arguments, options)) or 1.0)
    settings = {**SETTINGS, "num_steps": num_steps}
    ClipTrainer(ClipModel(make_config(FlatColours(), settings)), FlatColours(), settings, seed=0).step(2)
    assert asked == [((2, num_steps), {"warmup": warmup})]


class Numbers:
    """Image source and scorer in one: images and captions are numbers, 32 of which have different embeddings."""

    vocabulary, num_train = None, 1

    def __init__(self, words=()):
        self.words = words  # of the one training caption

    def captions(self, split, indices):
        return [" ".join(self.words)] if split == "train" else [str(index) for index in indices]

    def images(self, split, indices):
        assert len(indices) <= 64
        return torch.tensor(list(indices))

    def embed_images(self, images):
        return torch.eye(128)[images % 32]  # the 33rd looks like the first

    def embed_texts(self, texts):
        return torch.eye(128)[[int(text) % 32 for text in texts]]


@pytest.mark.parametrize(("num_pairs", "wrong"), [(10, 0), (64, 0), (70, 0), (64, 2)])
def test_candidates_are_32_pairs_and_a_remainder_is_left_out(num_pairs, wrong):
    class Mistaken(Numbers):
        def embed_texts(self, texts):
            found = super().embed_texts(texts)
            found[:wrong] = found[:wrong].flip(0)  # the first two are exchanged
            return found

    accuracy = retrieval_accuracy(Mistaken(), Mistaken(), "val", num_pairs)
    assert accuracy == {
        "image_to_text_accuracy": pytest.approx(1 - wrong / num_pairs),
        "text_to_image_accuracy": pytest.approx(1 - wrong / num_pairs),
        "mean_clip_score": pytest.approx(1 - wrong / num_pairs),
    }


def test_the_report_says_what_was_measured_and_ends_with_the_last_loss():
    _, report = train_clip(FlatColours(), {**SETTINGS, "num_steps": 2}, seed=0)
    assert (report["num_steps"], report["num_candidates"], report["num_eval"]) == (2, 32, 32)
    assert report["final_loss"] == report["history"][-1]["loss"] != report["history"][0]["loss"]


def test_an_open_vocabulary_has_eight_thousand_words_at_most():
    words = [f"word{number:05d}" for number in range(8001)]
    config = make_config(Numbers(words[::-1]), SETTINGS)
    assert config.vocabulary == tuple(words[:8000])  # of equals, the first by the alphabet


def test_the_recipe_makes_the_published_model():
    report = read_report(ROOT / "models" / "embedded" / "clip.safetensors")
    config = load_model(ROOT / "models" / "embedded" / "clip.safetensors", ClipModel).config
    assert make_config(SceneSource(0, num_train=10), RECIPE) == config
    assert RECIPE["batch_size"] == 128
    assert (RECIPE["num_eval"], clip.NUM_CANDIDATES) == (report["num_eval"], report["num_candidates"])
