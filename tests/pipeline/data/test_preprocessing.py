import io

import numpy as np
import pytest
import torch
from PIL import Image

from lantern_pipeline.data.picture_files import read_pictures
from lantern_pipeline.data.preprocessing import Preprocessing, map_pictures


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


def test_generated_images_are_prepared_as_files_are():
    image = picture(40, 40)
    drawn = tensor(image)[None].float() / 127.5 - 1
    found = Preprocessing("centre_lanczos_16").prepare(drawn)
    assert torch.equal(found[0], Preprocessing("centre_lanczos_16").read("a.png", content(image)))


@pytest.mark.parametrize("name", ["none", "centre_lanczos_40"])
def test_images_of_the_right_size_are_left_alone(name):
    image = picture(40, 40)
    assert torch.equal(Preprocessing(name).prepare(tensor(image)[None])[0], tensor(image))


def test_grey_images_become_colour_ones():
    found = Preprocessing("none").read("a.png", content(picture(8, 6).convert("L")))
    assert found.shape == (3, 6, 8) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["lanczos", "centre_lanczos", "centre_nearest_256", "centre_lanczos_0", "", "NONE"])
def test_an_unknown_preprocessing_is_named(name):
    with pytest.raises(ValueError, match='preprocessing must be "none" or "centre_<filter>_<pixels>"'):
        Preprocessing(name)


def test_an_unreadable_image_is_named():
    broken = content(picture(30, 30))[:100]
    for data in (broken, b"not an image"):
        with pytest.raises(ValueError, match=r"b\.png is not a readable image"):
            Preprocessing("centre_lanczos_16").read("b.png", data)


def test_pictures_are_stacked_in_their_order():
    pixels = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    assert torch.equal(map_pictures(pixels, tensor), pixels)


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
    found = list(read_pictures(folder))
    assert [name for name, _ in found] == ["b.png", "c.jpeg", "deep/a.JPG"]
    assert found == list(read_pictures(tmp_path / "images.zip"))


def test_a_place_without_images_is_named(tmp_path):
    with pytest.raises(ValueError, match="is neither a folder of images nor a zip archive"):
        list(read_pictures(tmp_path / "nowhere"))
    (tmp_path / "one.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds 1 images \(.png, .jpg, .jpeg\); need at least 2"):
        list(read_pictures(tmp_path))
