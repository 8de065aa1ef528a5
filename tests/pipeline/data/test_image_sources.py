"""Tests of image sources: splits, folders, and the data of a training step."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from lantern_pipeline.data.image_sources import (
    FolderSource,
    SceneSource,
    batch_indices,
    hold_out,
    make_source,
    training_captions,
)
from lantern_pipeline.schema.run_config import Captions
from lantern_pipeline.world.scenes import HELD_OUT


@pytest.fixture
def folder(tmp_path):
    for index in range(20):
        colour = (10 * index, 0, 255)
        Image.new("RGB", (80, 60), colour).save(tmp_path / f"image{index:02d}.png")
        (tmp_path / f"image{index:02d}.txt").write_text(f"photo number {index}\n")
    return tmp_path


def test_scene_source_pairs_images_captions_and_prompts():
    source = SceneSource(seed=0, num_train=100)
    captions = source.captions("seen", range(5))
    prompts = source.prompts("seen", 5)
    assert [prompt.text for prompt in prompts] == captions
    assert [prompt.id for prompt in prompts][:2] == ["seen-00000", "seen-00001"]
    assert torch.equal(source.images("seen", [4, 2]), source.images("seen", range(5))[[4, 2]])


def test_splits_share_no_scene_order_and_no_noise():
    source = SceneSource(seed=0)
    captions = {split: tuple(source.captions(split, range(20))) for split in ("train", "val", "seen", "unseen")}
    assert len(set(captions.values())) == 4
    assert not torch.equal(source.images("train", [0]), source.images("val", [0]))
    for split in ("train", "val", "seen"):
        kinds = {item[1:] for scene in source.scenes(split, range(300)) for item in scene.objects}
        assert not kinds & HELD_OUT


def test_a_tenth_is_held_out_and_its_captions_are_prompts_once_each_in_no_order_of_names(folder, caplog):
    for index in range(20, 200):
        Image.new("RGB", (8, 8)).save(folder / f"image{index}.png")
        (folder / f"image{index}.txt").write_text(f"photo number {index}\n")
    source = FolderSource(folder, image_size=24, seed=1)
    assert source.num_train == 180 and source.vocabulary is None
    held_out = source.captions("val", range(20))
    assert held_out == FolderSource(folder, 24, 1).captions("seen", range(20))
    assert not set(held_out) & set(source.captions("train", range(180)))
    few, asked = source.prompts("seen", 6), source.prompts("seen", 20)
    assert caplog.text == "" and few == asked[:6]
    texts = [prompt.text for prompt in asked]
    assert texts == source.captions("val", range(20)) and texts != sorted(texts)
    assert source.prompts("seen", 96) == asked and len({prompt.id for prompt in asked}) == 20
    assert "96 captions of split seen were requested, but there are 20: these" in caplog.text
    captions = training_captions({"source": "folder", "folder": folder, "image_size": 24, "max_words": 9}, 96, seed=1)
    assert [prompt.text for prompt in captions["val"]] == texts and len(captions["train"]) == 180


def test_images_that_come_again_are_said_aloud_once(folder, caplog):
    source = FolderSource(folder, 24)
    source.images("val", range(2)), source.captions("train", range(18)), source.prompts("seen", 2)
    assert caplog.text == ""
    assert torch.equal(source.images("val", [2, 6])[0], source.images("val", [0])[0])
    source.images("seen", [8])
    assert caplog.text.count("come again") == 1
    assert "image 7 of split val was requested, but there are 2" in caplog.text


def test_folder_images_are_scaled_and_cropped_at_the_centre(tmp_path):
    for name, size in (("wide", (90, 30)), ("tall", (30, 90))):
        pixels = np.zeros((size[1], size[0], 3), np.uint8)
        centre = (slice(None), slice(30, 60)) if name == "wide" else (slice(30, 60), slice(None))
        pixels[centre] = (255, 0, 0)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text("a red middle")
    source = FolderSource(tmp_path, image_size=12)
    for split in ("train", "val"):
        image = source.images(split, [0])[0]
        assert image.shape == (3, 12, 12)
        inside = image[:, 2:-2, 2:-2]
        assert (inside[0] > 0.9).all() and (inside[1:] < -0.9).all()


def test_long_folder_captions_are_cut_and_counted(folder, caplog):
    (folder / "image03.txt").write_text("one, two three four five")
    source = FolderSource(folder, max_words=4)
    texts = source.captions("train", range(18)) + source.captions("val", range(2))
    assert "one two three four" in texts
    assert "cut 1 of 20 captions to 4 words" in caplog.text


def test_folder_mistakes_are_named(folder, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        FolderSource(tmp_path / "nowhere")
    (folder / "image05.txt").write_text(" ")
    with pytest.raises(ValueError, match=r"image05.txt is empty"):
        FolderSource(folder)
    (folder / "image05.txt").unlink()
    with pytest.raises(ValueError, match=r"image05.png has no caption file image05.txt"):
        FolderSource(folder)
    (folder / "image05.txt").write_text("a broken picture")
    (folder / "image05.png").write_bytes(b"not a picture")
    source = FolderSource(folder)
    with pytest.raises(ValueError, match=r"image05.png is not a readable image"):
        source.images("train", range(18)), source.images("val", range(2))


def test_folders_below_the_folder_are_searched_and_name_the_images(tmp_path):
    for part in ("00000", "00001"):
        (tmp_path / part).mkdir()
        Image.new("RGB", (30, 30)).save(tmp_path / part / "a.jpg")
        (tmp_path / part / "a.txt").write_text(f"caption {part}")
    source = FolderSource(tmp_path, 24)
    ids = {prompt.id: prompt.text for prompt in source.prompts("train", 1) + source.prompts("val", 1)}
    assert sorted(id.split("-")[1] for id in ids) == ["00000/a", "00001/a"]
    assert all(text == f"caption {id[-7:-2]}" for id, text in ids.items())


def test_pixels_stay_in_memory_up_to_a_bound(folder, monkeypatch):
    monkeypatch.setattr("lantern_pipeline.data.image_sources.CACHED_PIXELS", 3 * 24 * 24 * 3)
    source = FolderSource(folder, 24)
    first = source.images("train", range(18))
    assert len(source._pixels) == 3
    assert torch.equal(first, source.images("train", range(18)))


def test_a_tenth_is_held_out_as_it_is_drawn():
    train, held_out = hold_out(list(range(30)), seed=1)
    assert sorted(train + held_out) == list(range(30)) and len(held_out) == 3
    assert train == sorted(train) and hold_out(list(range(30)), seed=1)[1] == held_out
    many = hold_out(list(range(1000)), seed=1)[1]
    assert many != sorted(many)
    assert hold_out(list(range(30)), seed=2)[1] != held_out
    with pytest.raises(ValueError, match="at least 2 captioned images or captions are needed"):
        hold_out(["one"], seed=0)


def test_a_source_is_chosen_by_the_config():
    scenes = make_source({"source": "scenes", "image_size": 48, "num_train": 7, "folder": None}, seed=3)
    assert isinstance(scenes, SceneSource) and scenes.num_train == 7 and scenes.seed == 3
    assert make_source({"source": "none"}, seed=0) is None


def test_step_data_are_a_pure_function_of_seed_and_step():
    assert batch_indices(0, 5, 8, 1000) == batch_indices(0, 5, 8, 1000)
    assert batch_indices(0, 5, 8, 1000) != batch_indices(0, 6, 8, 1000)
    assert all(0 <= index < 10 for index in batch_indices(1, 0, 200, 10))


def test_captions_from_a_file_hold_out_a_tenth(tmp_path):
    path = tmp_path / "captions.json"
    path.write_text(json.dumps([{"id": i, "text": f"caption {i}"} for i in range(40)]))
    settings = Captions(file="captions", num=30, draw=True)
    captions = training_captions({"source": "captions"}, 2, seed=1, settings=settings, path=path)
    assert len(captions["train"]) == 27 and len(captions["val"]) == 2
    ids = [prompt.id for prompts in captions.values() for prompt in prompts]
    assert len(set(ids)) == 29


def test_training_captions_are_those_of_the_images_and_need_some():
    data = {"source": "scenes", "image_size": 24, "num_train": 9}
    captions = training_captions(data, 4, seed=1)
    assert [prompt.id for prompt in captions["val"]] == [f"val-{i:05d}" for i in range(4)]
    assert len(captions["train"]) == 9
    with pytest.raises(ValueError, match=r"data\.source none has no captions"):
        training_captions({"source": "none"}, 2, seed=1)
