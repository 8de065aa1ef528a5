"""Prompt files: every format, every mistake."""

import json

import pytest

from lantern.prompts import Prompt, load_prompts

CAPTION = "a large red circle on grass"


def test_text_file_gets_ids_and_scenes(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(f"{CAPTION}\na cat\n")
    first, second = load_prompts(file)
    assert first.id == "mine-00000" and first.scene["objects"] == [["large", "red", "circle"]]
    assert second == Prompt("mine-00001", "a cat", None)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv"])
def test_formats_with_ids_agree(tmp_path, suffix):
    rows = [{"id": "x", "text": "a cat"}, {"id": "y", "text": CAPTION}]
    contents = {
        ".jsonl": "\n".join(map(json.dumps, rows)),
        ".json": json.dumps(rows),
        ".csv": f"id,text\nx,a cat\ny,{CAPTION}\n",
        ".tsv": f"id\ttext\nx\ta cat\ny\t{CAPTION}\n",
    }
    file = tmp_path / f"mine{suffix}"
    file.write_text(contents[suffix])
    assert [(prompt.id, prompt.text) for prompt in load_prompts(file)] == [("x", "a cat"), ("y", CAPTION)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", " \n", "the prompt file is empty"),
        ("a.json", "[]", "the prompt file is empty"),
        ("a.csv", "id,text\n", "the prompt file is empty"),
        ("a.txt", "a cat\n\na dog\n", "line 2: empty prompt"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n', "line 2: empty line"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("a.jsonl", '{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}', "duplicate prompt ids x;"),
        ("a.csv", "name,text\nx,a cat\n", "missing column id"),
        ("a.json", '{"text": "a"}', "expected a list"),
        ("a.json", '[{"caption": "a"}]', "entry 1: expected a string or an object with the key text"),
        ("a.yaml", "a cat", "prompt files end in"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        load_prompts(file)
    assert name in str(error.value)
