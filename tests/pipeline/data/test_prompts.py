"""Tests of prompt files: all formats and faults, COCO's captions, prompts left out and sampled at random."""

import json
import logging
import zipfile

import pytest

from lantern.io import DamagedFileError
from lantern.prompts import Prompt
from lantern_pipeline.data.prompt_files import load_prompt_set, load_prompts, read_prompts, write_prompts
from lantern_pipeline.schema.run_config import PromptSet

CAPTION = "a large red circle on grass"


def write(folder, name, content):
    file = folder / name
    file.write_text(content, encoding="utf-8", newline="")
    return file


def pairs(prompts):
    return [(prompt.id, prompt.text) for prompt in prompts]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "a cat\na dog\n"), ("a.json", '["a cat ", "a dog\\n"]'), ("a.jsonl", '"a cat"\n{"text": "a dog"}')],
)
def test_prompts_without_ids_are_numbered(tmp_path, name, content):
    prompts = load_prompts(write(tmp_path, name, content))
    assert prompts == [Prompt("a-00000", "a cat"), Prompt("a-00001", "a dog")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n7,a cat\n8,a dog\n"),
        ("a.json", '{"7": "a cat", "8": "a dog"}'),
        ("a.csv", "Image_ID,Caption\n7,a cat\n8,a dog\n"),
        ("a.tsv", "PROMPT\tnote\tid\na cat\tx\t7\na dog\t\t8\n"),
        ("a.json", '[{"image_id": 7, "caption": "a cat"}, {"image_id": 8, "caption": "a dog"}]'),
        ("a.jsonl", '{"id": 7, "prompt": "a cat"}\r\n{"id": "8", "prompt": "a dog"}\r\n'),
    ],
)
def test_ids_are_read_in_every_format_and_usual_names_of_columns_in_any_case(tmp_path, name, content):
    assert pairs(load_prompts(write(tmp_path, name, content))) == [("7", "a cat"), ("8", "a dog")]


def test_genevals_prompts_are_read_as_they_are(tmp_path):
    """Objects have a key prompt among others, some of which are lists. A text may occur twice."""
    lines = [
        {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"},
        {
            "tag": "colors",
            "include": [{"class": "dog", "color": "red"}],
            "exclude": [],
            "prompt": "a photo of a red dog",
        },
        {"tag": "counting", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"},
    ]
    path = tmp_path / "evaluation_metadata.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    prompts = load_prompt_set(path, PromptSet(file="a", num=None, copies=2), seed=0)
    assert [prompt.text for prompt in prompts[:3]] == [line["prompt"] for line in lines]
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 6


def test_a_table_in_the_layout_of_partiprompts(tmp_path):
    content = (
        "Prompt\tCategory\tChallenge\tNote\n"
        "tree\tAbstract\tBasic\tA note\n"
        '"O P E N" over a door\tSigns\tWriting\t\n'
        'Cats playing chess\tAnimals\tImagination\tDescription of "Cats Playing Chess"\n'
        '"a sign that says ""STOP"""\tSigns\tWriting\n'
    )
    assert pairs(load_prompts(write(tmp_path, "Parti.tsv", content))) == [
        ("Parti-00000", "tree"),
        ("Parti-00001", '"O P E N" over a door'),
        ("Parti-00002", "Cats playing chess"),
        ("Parti-00003", 'a sign that says "STOP"'),
    ]


def test_a_caption_may_hold_separators_of_its_own(tmp_path):
    text = "a cat,\u2028a dog\x85 and a bird"
    assert load_prompts(write(tmp_path, "a.csv", f'id,text\nx,"{text}"\n'))[0].text == text
    assert load_prompts(write(tmp_path, "a.txt", text))[0].text == text
    assert load_prompts(write(tmp_path, "a.jsonl", json.dumps({"text": text}, ensure_ascii=False)))[0].text == text


def test_columns_that_are_not_used_may_have_equal_names(tmp_path):
    table = write(tmp_path, "a.csv", "text,Note,note,caption,Caption\na cat,1,2,3,4\n")
    assert pairs(load_prompts(table)) == [("a-00000", "a cat")]


def test_empty_cells_beyond_the_header_are_no_matter(tmp_path):
    assert pairs(load_prompts(write(tmp_path, "a.csv", "id,text\nx,a cat,,\n"))) == [("x", "a cat")]


@pytest.mark.parametrize("content", [",text\n7,a cat\n", "text,\na cat,\n", "text,,\na cat,x,\n"])
def test_a_column_without_a_name_holds_no_ids(tmp_path, content):
    """The index that `DataFrame.to_csv` writes, and separators at the end of every line."""
    assert pairs(load_prompts(write(tmp_path, "a.csv", content))) == [("a-00000", "a cat")]


def test_rows_without_text_and_repeated_rows_are_left_out_and_counted(tmp_path, caplog):
    file = write(tmp_path, "a.txt", "a cat\n\na dog\n  \na cat\n")
    with caplog.at_level(logging.INFO):
        assert pairs(load_prompts(file)) == [("a-00000", "a cat"), ("a-00002", "a dog"), ("a-00004", "a cat")]
    assert "left out 2 rows without a text, the first is row 2" in caplog.text
    caplog.clear()
    table = write(tmp_path, "a.csv", "id,text\nx,a cat\nx,a cat\n\ny,\n")
    assert pairs(load_prompts(table)) == [("x", "a cat")]
    assert "left out 1 rows that repeat an id and its text" in caplog.text
    assert "left out 2 rows without a text, the first is row 4" in caplog.text
    lines = write(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n')
    assert pairs(load_prompts(lines)) == [("a-00000", "a"), ("a-00002", "b")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", " \n", "the prompt file is empty"),
        ("a.json", "[]", "the prompt file is empty"),
        ("a.csv", "", "the prompt file is empty"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("a.jsonl", '{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}', "the id x has two texts, 'a' and 'b'"),
        ("a.csv", 'id,text\nx,"' + 200_000 * "a", "line 2: no CSV .* quote that never ends"),
        ("a.csv", "name,words\nx,a cat\n", "row 2: expected a text, or an object or columns with text"),
        ("a.csv", "id,text\nx,a cat, a dog\n", "line 2: 3 cells under a header of 2"),
        ("a.csv", "id,text\n,a cat\n", "row 2: empty id"),
        ("a.json", '{"text": "a"}', "expected a list"),
        (
            "a.json",
            '{"annotations": [{"image_id": 1, "bbox": []}]}',
            r"not as in COCO's captions_\*\.json \(KeyError: 'caption'\)",
        ),
        ("a.yaml", "a cat", "prompt files end in"),
        ("a.csv", "Text,id,text \na cat,x,a dog\n", "row 1: 'Text' and 'text ' are both the text; rename one"),
        ("a.tsv", "text\tid\tid\na cat\tx\ty\n", "row 1: 'id' and 'id' are both the id; rename one"),
        ("a.json", '{"x": "a cat", "x": "a dog"}', "the key 'x' stands twice in one object, with two values"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        load_prompts(write(tmp_path, name, content))
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", '"a cat"\n{"text": VALUE}', "row 2: the key text"),
        ("a.jsonl", '"a cat"\nVALUE', "row 2: expected a text"),
        ("a.json", '[{"text": "a cat"}, {"caption": VALUE}]', "row 2: the key caption"),
        ("a.json", '["a cat", VALUE]', "row 2: expected a text"),
        ("a.json", '{"7": "a cat", "8": VALUE}', "row 2: the key text"),
        ("a.json", '{"annotations": [{"image_id": 1, "caption": VALUE}]}', "annotation 1: a caption"),
    ],
)
def test_a_prompt_that_is_no_text_is_named_with_file_and_row(tmp_path, name, content, place):
    for value in ("true", "7", "1.5", "null", "NaN", '["a"]', '{"a": "b"}'):
        with pytest.raises(ValueError, match=rf"a\.jsonl?, {place}"):
            load_prompts(write(tmp_path, name, content.replace("VALUE", value)))


def test_an_id_that_is_neither_text_nor_number_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"row 1: an id must be a text or a number, got"):
        load_prompts(write(tmp_path, "a.jsonl", '{"id": null, "text": "a cat"}'))


def test_numbers_in_a_table_are_texts(tmp_path):
    assert pairs(load_prompts(write(tmp_path, "a.csv", "id,text\n1,7\n2,true\n3,null\n"))) == [
        ("1", "7"),
        ("2", "true"),
        ("3", "null"),
    ]


def test_another_encoding_and_missing_files_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text \(byte 3\)"):
        load_prompts(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match=r"none\.txt is no file"):
        load_prompts(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match="is a folder; name the file in it"):
        load_prompts(tmp_path)


def coco(folder, name="captions_val2017.json"):
    """Write annotations in COCO's layout, with images in another order than the annotations."""
    content = {
        "info": {},
        "images": [{"id": id, "file_name": f"{id:012d}.jpg"} for id in (9, 20, 31)],
        "annotations": [
            {"image_id": 20, "id": 1, "caption": "A cat."},
            {"image_id": 9, "id": 2, "caption": "Two dogs asleep."},
            {"image_id": 20, "id": 3, "caption": "A black cat on a mat.\n"},
            {"image_id": 9, "id": 4, "caption": "Two big dogs yawn"},
            {"image_id": 9, "id": 5, "caption": "Two red dogs yawn"},
            {"image_id": 31, "id": 6, "caption": " "},
        ],
    }
    return write(folder, name, json.dumps(content))


def test_the_longest_caption_of_each_coco_image_is_taken(tmp_path):
    assert pairs(load_prompts(coco(tmp_path))) == [
        ("000000000020", "A black cat on a mat."),
        ("000000000009", "Two big dogs yawn"),
    ]
    content = json.loads(coco(tmp_path).read_text())
    del content["images"]  # which ids do not need
    assert load_prompts(write(tmp_path, "b.json", json.dumps(content)))[0].id == "000000000020"


def test_a_file_inside_an_archive_or_a_folder_is_read(tmp_path):
    expected = load_prompts(coco(tmp_path))
    member = "annotations/captions_val2017.json"
    with zipfile.ZipFile(tmp_path / "annotations.zip", "w") as archive:
        archive.write(tmp_path / "captions_val2017.json", member)
        archive.writestr("annotations/README", "")
    assert load_prompts(tmp_path / "annotations.zip", member=member) == expected
    assert load_prompts(tmp_path / "annotations.zip") == expected
    assert load_prompts(tmp_path, member="captions_val2017.json") == expected
    with zipfile.ZipFile(tmp_path / "annotations.zip", "a") as archive:
        archive.writestr("annotations/instances_val2017.json", "{}")
    with pytest.raises(
        ValueError, match="holds several prompt files; set the key member to one of annotations/captions"
    ):
        load_prompts(tmp_path / "annotations.zip")
    with pytest.raises(ValueError, match=r"holds no captions\.json; set the key member to one of"):
        load_prompts(tmp_path / "annotations.zip", member="captions.json")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "annotations.zip").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"cut\.zip is damaged or is no zip archive"):
        load_prompts(tmp_path / "cut.zip", member=member)


def test_a_prompt_set_takes_the_first_or_draws(tmp_path, caplog):
    file = write(tmp_path, "a.txt", "\n".join(f"prompt {number}" for number in range(100)))
    everything = load_prompts(file)
    assert load_prompt_set(file, PromptSet(file="a", num=None), 0) == everything
    assert load_prompt_set(file, PromptSet(file="a", num=3), 0) == everything[:3]
    few, more = (load_prompt_set(file, PromptSet(file="a", num=num, draw=True), 5) for num in (10, 30))
    assert len(few) == 10 and len(more) == 30
    assert set(few) < set(more) and more == sorted(more, key=everything.index)
    assert few != load_prompt_set(file, PromptSet(file="a", num=10, draw=True), 6)
    assert load_prompt_set(file, PromptSet(file="a", num=100, draw=True), 5) == everything and not caplog.text
    assert load_prompt_set(file, PromptSet(file="a", num=101, draw=True), 5) == everything
    assert "only 100 of the 101 requested prompts" in caplog.text


def test_copies_of_a_prompt_have_ids_of_their_own(tmp_path):
    file = write(tmp_path, "a.txt", "a cat\na dog\na cow\n")
    found = pairs(load_prompt_set(file, PromptSet(file="a", num=2, copies=3), 0))
    first = [("a-00000", "a cat"), ("a-00001", "a dog")]
    assert found == [*first, *((f"{id}-r{turn}", text) for turn in (1, 2) for id, text in first)]


def test_prompts_come_back_unless_their_file_is_damaged(tmp_path):
    written = [Prompt("seen-00000", CAPTION), Prompt("x", "“quotes” <b>")]
    write_prompts(tmp_path / "p.jsonl", written)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows[0] == {"id": "seen-00000", "text": CAPTION} and rows[1]["id"] == "x"
    assert read_prompts(tmp_path / "p.jsonl") == written
    (tmp_path / "p.jsonl").write_bytes((tmp_path / "p.jsonl").read_bytes()[:-2])
    with pytest.raises(DamagedFileError, match=r"p.jsonl is truncated: its last line has no end; fetch it"):
        read_prompts(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_text('{"id": "p0"\n')
    with pytest.raises(DamagedFileError, match=r"p\.jsonl holds no prompts"):
        read_prompts(tmp_path / "p.jsonl")
