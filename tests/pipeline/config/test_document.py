"""The page about the configuration says what the schema and the default config say."""

import subprocess
import sys

from conftest import ROOT
from lantern_pipeline.config.document import PAGE, make_page, read_comments


def test_the_committed_page_is_up_to_date():
    written = PAGE.read_text(encoding="utf-8")
    assert written == make_page(), "run `python -m lantern_pipeline.config.document` and commit docs/configuration.md"


def test_a_row_has_key_type_bounds_default_and_meaning():
    rows = make_page().splitlines()
    assert "| `sampling.top_p` | number, > 0, ≤ 1 | `1.0` | probability mass kept, 1 = all |" in rows
    assert "| `tokenizer.encoder_width` | whole number, ≥ 8, multiple of 8 | `48` | channels at twice the" in "\n".join(
        rows
    )
    assert any(row.startswith('| `device` | `auto`, `cpu`, `cuda` | `"auto"` |') for row in rows)
    assert any(row.startswith("| `methods[].preset` | `autoregressive`, `eagle1`") for row in rows)
    assert any(row.startswith("| `prompts.<name>.num` | whole number, null, ≥ 1 |") for row in rows)


def test_comments_belong_to_their_keys():
    text = "a: # one\n  b: 1 # two\n  c:\n    - d: 2\n    e: [1] # three\nf: x # four\n"
    assert read_comments(text) == {"a": "one", "a.b": "two", "a.c.e": "three", "f": "four"}


def test_the_page_is_written_without_torch():
    command = "import sys, lantern_pipeline.config.document; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0
