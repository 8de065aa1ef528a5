"""Tests of images as files, tensors and codes."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.figure_tables import Mosaic
from lantern_pipeline.data import image_files
from lantern_pipeline.data.image_files import (
    Preprocessing,
    code_positions,
    decode_images,
    read_images,
    resize_and_crop,
    to_float,
    to_pixels,
    to_uint8,
)


def picture(width, height, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def content(image, form="PNG"):
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def test_a_file_is_cropped_to_its_centre_square_and_then_scaled_by_pillow():
    image = picture(70, 40)
    expected = image.crop((15, 0, 55, 40)).resize((16, 16), Image.Resampling.LANCZOS)
    found = Preprocessing("centre_lanczos_16").read("a.png", content(image))
    assert found.dtype == torch.uint8 and torch.equal(found, tensor(expected))
    assert not torch.equal(found, Preprocessing("centre_bicubic_16").read("a.png", content(image)))


def test_an_odd_margin_is_cut_where_the_published_code_cuts_it():
    """round(1.5) is 2, so one pixel more of the right side stays."""
    image = picture(7, 4)
    assert torch.equal(Preprocessing("centre_box_4").read("a.png", content(image)), tensor(image.crop((2, 0, 6, 4))))


def test_an_image_may_be_a_hundred_times_as_wide_as_high():
    assert resize_and_crop(picture(100, 1), 2).size == (2, 2)
    with pytest.raises(ValueError, match="sides must be at most 1 : 100, got 101 x 1 pixels"):
        resize_and_crop(picture(101, 1), 2)


def test_generated_images_are_prepared_as_files_are():
    image = picture(40, 40)
    second = picture(40, 40, seed=1)
    drawn = torch.stack([tensor(image), tensor(second)]).float() / 127.5 - 1
    chosen = Preprocessing("centre_lanczos_16")
    expected = [chosen.read("a.png", content(file)) for file in (image, second)]
    assert torch.equal(chosen.prepare(drawn), torch.stack(expected))

    for name in ("none", "centre_lanczos_40"):
        assert torch.equal(Preprocessing(name).prepare(tensor(image)[None])[0], tensor(image))


def test_grey_images_become_colour_ones_and_16_bits_are_scaled():
    found = Preprocessing("none").read("a.png", content(picture(8, 6).convert("L")))
    assert found.shape == (3, 6, 8) and torch.equal(found[0], found[2])
    grey = Image.fromarray(np.array([[0, 32768, 65535]] * 3, np.uint16))
    assert Preprocessing("none").read("a.png", content(grey))[0, 0].tolist() == [0, 127, 255]


@pytest.mark.parametrize("name", ["lanczos", "centre_nearest_256", "centre_lanczos_0"])
def test_an_unknown_preprocessing_is_named(name):
    with pytest.raises(ValueError, match='preprocessing must be "none" or "centre_<filter>_<pixels>"'):
        Preprocessing(name)


def test_an_unreadable_image_is_named():
    broken = content(picture(30, 30))[:100]
    for data in (broken, b"not an image"):
        with pytest.raises(ValueError, match=r"b\.png is not a readable image"):
            Preprocessing("centre_lanczos_16").read("b.png", data)


def test_a_folder_and_its_archive_give_the_same_images(tmp_path):
    import zipfile

    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.png", "deep/a.JPG", "c.jpeg", ".hidden.png", "notes.txt"):
        (folder / name).write_bytes(name.encode())
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.write(file, file.relative_to(folder))
        archive.writestr("__MACOSX/b.png", "no image")
    found = list(read_images(folder))
    assert [name for name, _ in found] == ["b.png", "c.jpeg", "deep/a.JPG"]
    assert found == list(read_images(tmp_path / "images.zip"))


def test_a_place_without_images_is_named(tmp_path):
    with pytest.raises(ValueError, match="is neither a folder of images nor a zip archive"):
        list(read_images(tmp_path / "nowhere"))
    (tmp_path / "one.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds 1 images \(.png, .jpg, .jpeg\); need at least 2"):
        list(read_images(tmp_path))


# Codes of 8, in lines of three: without other tokens, with line ends, and after a smaller image of two tokens, whose
# number of tokens is that of an image with line ends.
CODES = [[0, 1, 2], [3, 4, 5]]
TOKENS = ([0, 1, 2, 3, 4, 5], [0, 1, 2, 8, 3, 4, 5, 8], [7, 7, 0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("tokens", TOKENS)
def test_line_ends_and_a_smaller_image_are_not_decoded(tokens):
    tokenizer, tokens = Mosaic((2, 3)), torch.tensor([tokens])
    assert tokens[0][code_positions(tokenizer, tokens)].tolist() == CODES
    assert torch.equal(decode_images(tokenizer, tokens), tokenizer.decode(torch.tensor([CODES])))


def test_few_images_are_decoded_at_a_time(monkeypatch):
    codes = torch.arange(28).reshape(7, 4) % 8
    whole, sizes = decode_images(Mosaic(), codes), []

    class Counting(Mosaic):
        def decode(self, codes):
            sizes.append(len(codes))
            return super().decode(codes)

    monkeypatch.setattr(image_files, "CODES_AT_ONCE", 15)
    assert torch.equal(decode_images(Counting(), codes), whole)
    assert sizes == [3, 3, 1]
    monkeypatch.setattr(image_files, "CODES_AT_ONCE", 3)
    assert torch.equal(decode_images(Counting(), codes[:2]), whole[:2])
    assert sizes[3:] == [1, 1]


def test_pixels_are_rounded_and_clamped_and_survive_the_way_to_8_bits():
    images = torch.tensor([-1.0, 0.0, 1.0, 1.5]).expand(1, 3, 1, 4)
    assert to_pixels(images)[0, 0, :, 0].tolist() == [0, 128, 255, 255]
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(to_float(levels)), levels)
