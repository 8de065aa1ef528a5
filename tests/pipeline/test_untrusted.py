"""Tests of untrusted files: nothing runs, leaves its folder or fills the memory (calls, prompts, archives, images)."""

import io
import json
import re
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from helpers.paths import ROOT
from lantern.prompts import MAX_ID_LENGTH, MAX_TEXT_LENGTH, Prompt
from lantern_models.checkpoints.weight_files import read_weights
from lantern_pipeline.cli_sample import Sample, draw_samples
from lantern_pipeline.data.image_files import read_images, resize_and_crop, to_rgb
from lantern_pipeline.data.image_sources import FolderSource
from lantern_pipeline.data.prompt_files import load_prompts, read_prompts, write_prompts
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.figures.image_grid import draw_pictures, wrap_prompt
from lantern_pipeline.figures.style import save_figure

# --- calls and imports that code may have---------------------------------------------------------


def test_no_archive_is_unpacked_and_no_model_hub_is_asked():
    folders = ("lantern*", "workflow", "benchmarks")
    paths = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    assert len(paths) > 200
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\.extractall\(|trust_remote_code=True", text), path
        for call in re.findall(r"\.from_pretrained\((?:[^()]|\([^()]*\))*\)", text):
            assert "local_files_only=True" in call, path
        assert text.count("weights_only=True") >= text.count("torch.load("), path
        assert text.count("allow_pickle=False") >= text.count("np.load("), path


def test_rules_run_no_shell_command():
    rules = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in rules)
    assert not re.search(r"^\s*shell:", text, re.M)
    assert not re.search(r"\b(eval|exec|pickle|urllib\.request|requests|socket|subprocess|shell\()\b", text)


# --- weights --------------------------------------------------------------------------------------


def test_a_torchscript_archive_is_refused_unread(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.zeros(1)), tmp_path / "ViT-B-32.pt")
    with pytest.raises(ValueError, match=r"ViT-B-32\.pt is a TorchScript archive, a program .* as safetensors"):
        read_weights(tmp_path / "ViT-B-32.pt")


# --- prompts --------------------------------------------------------------------------------------

HOSTILE = [
    "../../../etc/passwd",
    "/etc/passwd",
    "C:\\Windows\\system32",
    "$(touch hacked); `touch hacked` && rm -rf x | 'quo\"tes'",
    "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">",
    '=HYPERLINK("http://example.org","a")',
    "+1", "-rf", "@SUM(1)", "{x} {wildcards.shard} %s %(name)s ${HOME}",
    "$\\frac{1}{ \\undefined $ and $x^", "$", "$$", "\\", "\\N{foo}",
    "\u202eright to left שלום مرحبا\u200f",
    "emoji 😀 family 👨‍👩‍👧 \U000e0041",
    "NA", "nan", "None", "null", "007", "1e5", "True",
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv"])
def test_hostile_texts_and_ids_come_through_every_format_and_the_tables_unchanged(tmp_path, suffix):
    rows = [{"id": text, "text": text} for text in HOSTILE]
    path = tmp_path / f"a{suffix}"
    if suffix in (".csv", ".tsv"):
        pd.DataFrame(rows).to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    prompts = load_prompts(path)
    assert [(prompt.id, prompt.text) for prompt in prompts] == [(text, text) for text in HOSTILE]
    write_prompts(tmp_path / "prompts.jsonl", prompts)
    assert read_prompts(tmp_path / "prompts.jsonl") == prompts
    table = pd.DataFrame({"prompt_id": HOSTILE, "seconds": [None, *range(1, len(HOSTILE))]})
    write_table(tmp_path / "table.csv", table)
    table = read_table(tmp_path / "table.csv")
    assert list(table["prompt_id"]) == HOSTILE and table["seconds"].isna().tolist()[:2] == [True, False]


@pytest.mark.parametrize("letter", ["\0", "\n", "\x85", "\u2028", "\ud800"])
def test_ids_hold_no_control_characters(tmp_path, letter):
    rows = [{"id": "first", "text": "a dog"}, {"id": f"a{letter}b", "text": "a cat"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=rf"a\.jsonl, row 2: the id .* U\+{ord(letter):04X}") as error:
        load_prompts(tmp_path / "a.jsonl")
    assert letter not in str(error.value)


def test_long_and_broken_texts_are_refused_and_other_texts_kept():
    assert Prompt("x", "a" * MAX_TEXT_LENGTH).text and Prompt("x" * MAX_ID_LENGTH, "a").id
    assert Prompt("x", "bell\a nul\0 two\nlines").text == "bell\a nul\0 two\nlines"
    for id, text, words in [
        ("x", "a" * (MAX_TEXT_LENGTH + 1), "the text of a prompt must be at most 10000 characters long, got 10001"),
        ("x" * (MAX_ID_LENGTH + 1), "a", "the id of a prompt must be at most 1000 characters long, got 1001"),
        ("x", "half \ud83d", "the text of a prompt must hold no half of a surrogate pair"),
    ]:
        with pytest.raises(ValueError, match=words) as error:
            Prompt(id, text)
        assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    "content, words",
    [
        ("[" * 100_000, "JSON that cannot be read"),
        ("[" + "9" * 5000 + "]", "JSON that cannot be read"),
        ('{"annotations": {"a": 1}}', "not as in COCO"),
        ('{"annotations": [{"image_id": [], "caption": "a"}]}', "not as in COCO"),
        ('{"annotations": [], "images": 3}', "not as in COCO"),
    ],
)
def test_json_of_the_wrong_form_is_one_sentence(tmp_path, content, words):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=words) as error:
        load_prompts(tmp_path / "a.json")
    assert "a.json" in str(error.value) and len(str(error.value)) < 400


def test_a_scene_in_a_prompt_file_is_not_believed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "a cat", "scene": {"objects": "none"}}\n')
    assert load_prompts(tmp_path / "a.jsonl") == [Prompt("x", "a cat")]


# --- figures --------------------------------------------------------------------------------------


def test_prompts_in_figures_are_text_and_no_formulas(tmp_path):
    texts = [*HOSTILE, "control \x00 nul \x1b[31m esc", "y" * MAX_TEXT_LENGTH, "a\nb\tc"]
    images = np.zeros((len(texts), 1, 8, 8, 3), np.uint8)
    figure = draw_pictures(images, texts, ["one"], [[""]] * len(texts), "")
    drawn = [text for text in figure.texts if text.get_text()]
    num_lines = sum(len(wrap_prompt(text).splitlines()) for text in texts)
    assert len(drawn) == num_lines and not any(text.get_parse_math() for text in drawn)
    save_figure(figure, [tmp_path / "a.png", tmp_path / "a.pdf"], dpi=30)
    sample = Sample("one", "one", images[0, 0], True, 1, 1, 1.0)
    texts = ["$\\frac{1}{", "y" * MAX_TEXT_LENGTH, "\0"]
    save_figure(draw_samples(texts, [[sample]] * 3), [tmp_path / "b.png"], dpi=30)


def test_a_prompt_takes_a_bounded_number_of_lines_and_shows_what_was_cut():
    assert wrap_prompt("a small\n cat") == "a small cat"
    lines = wrap_prompt("word " * 200).split("\n")
    assert len(lines) == 8 and lines[-1].endswith("…") and max(map(len, lines)) <= 18
    assert max(map(len, wrap_prompt("y" * 100).split("\n"))) <= 18
    assert wrap_prompt("a\x00b") == "a\N{REPLACEMENT CHARACTER}b"


# --- archives -------------------------------------------------------------------------------------


def zip_of(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_members_of_archives_stay_in_memory_whatever_their_names(tmp_path):
    (tmp_path / "deep").mkdir()
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    names = ["/escaped.png", "b//odd.png", "c/odd$(x)\n.png", "../../left_out_as_hidden.png"]
    path = zip_of(tmp_path / "deep" / "a.zip", dict.fromkeys(names, picture.getvalue()) | {"../b.txt": "a cat\n"})
    assert len(list(read_images(path))) == 3
    assert [prompt.text for prompt in load_prompts(path)] == ["a cat"]
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["a.zip", "deep"]


def test_a_member_that_unpacks_into_too_much_is_refused_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("lantern_pipeline.data.prompt_files.MAX_MEMBER_BYTES", 1000)
    monkeypatch.setattr("lantern_pipeline.data.image_files.MAX_ARCHIVED_BYTES", 1000)
    path = zip_of(tmp_path / "a.zip", {"a.txt": b"a" * 1001, "a.png": b"a" * 1001, "b.png": b""})
    with pytest.raises(ValueError, match=r"a\.txt must be at most 1000 bytes when unpacked, got 1001"):
        load_prompts(path)
    with pytest.raises(ValueError, match=r"'a\.png' in .*a\.zip must be at most 1000 bytes when unpacked, got 1001"):
        list(read_images(path))


def test_a_member_that_lies_about_its_size_gives_no_more_than_it_says(tmp_path):
    path = zip_of(tmp_path / "a.zip", {"a.txt": b"a" * 100_000})
    path.write_bytes(path.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"a\.zip is damaged"):
        load_prompts(path)


@pytest.mark.parametrize("member", ["../a.txt", "/etc/hostname", "b/../../a.txt"])
def test_the_key_member_leads_to_no_file_outside_its_folder(tmp_path, member):
    (tmp_path / "a.txt").write_text("secret\n")
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="the key member must name a file inside"):
        load_prompts(tmp_path / "b", member=member)


# --- a user's own images --------------------------------------------------------------------------


def fill(folder, names):
    for name in names:
        Image.new("RGB", (9, 9)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text("a photo")
    return folder


def test_odd_file_names_are_ids_as_they_are(tmp_path):
    names = ["$(touch hacked)", "`x`;y", "<b>", "=1+1", "-rf", "{x}", "\u202egnp", "שלום", "😀"]
    names += ["l" * 250, "NA", "a\\b", "~"]
    source = FolderSource(fill(tmp_path, names), 8)
    ids = {prompt.id for split in ("train", "val") for prompt in source.prompts(split, len(names))}
    assert {re.sub(r"^(train|val)-", "", id) for id in ids} == set(names)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["a\nb", "c\nd"], "no control character"), (["a\udcff", "b\udcff"], "no half of a surrogate pair")],
    ids=["line end", "no UTF-8"],
)
def test_a_file_name_that_is_no_id_is_named(tmp_path, names, words):
    with pytest.raises(ValueError, match=rf"image '.*\.png': the id of a prompt must hold {words}") as error:
        FolderSource(fill(tmp_path, names), 8).prompts("train", 1)
    str(error.value).encode()


def write_images(folder, content):
    for name in ("a", "b"):
        (folder / f"{name}.png").write_bytes(content)
    return FolderSource(folder, 8)


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_image_bombs_and_broken_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    whole = encoded(Image.effect_noise((30, 30), 50))
    bombs = {"decompression bomb": encoded(Image.new("1", (50, 50))), "1 : 100": encoded(Image.new("1", (1, 101)))}
    cases = {**bombs, "truncated": whole[:-200], "cannot identify": b"<html>", "image file": b"\x89PNG\r\n\x1a\n"}
    for words, content in cases.items():
        with pytest.raises(ValueError, match=rf"[ab]\.png is not a readable image \(.*{words}.*replace or remove it"):
            write_images(fill(tmp_path, "ab"), content).images("train", [0])


def test_damaged_bytes_anywhere_are_at_most_one_sentence(tmp_path):
    whole, generator = encoded(Image.effect_noise((24, 24), 50).convert("RGB")), np.random.default_rng(0)
    fill(tmp_path, "ab")
    for _ in range(200):
        content = bytearray(whole)
        for place in generator.integers(len(content), size=3):
            content[place] = generator.integers(256)
        try:
            write_images(tmp_path, content).images("train", [0])
        except ValueError as error:
            assert "is not a readable image" in str(error)


def test_every_kind_of_pixel_becomes_red_green_and_blue():
    for mode in ("CMYK", "LA", "P", "1", "RGBA", "L", "YCbCr"):
        assert np.array(to_rgb(Image.new(mode, (8, 8)))).shape == (8, 8, 3)
    frames = [Image.new("RGB", (8, 8), (80 * number, 0, 0)) for number in range(3)]
    moving = Image.open(io.BytesIO(encoded(frames[1], save_all=True, append_images=frames[2:])))
    assert np.array(to_rgb(moving))[0, 0].tolist() == [80, 0, 0]
    with pytest.raises(ValueError, match=r"at most 1 : 100, got 1 x 200 pixels"):
        resize_and_crop(Image.new("RGB", (1, 200)), 8)


def test_a_caption_of_another_encoding_is_named(tmp_path):
    fill(tmp_path, ["a", "b"])
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"caption file .*a\.txt is not UTF-8 text \(byte 3\)"):
        FolderSource(tmp_path, 8)
