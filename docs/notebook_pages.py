"""Hook of mkdocs. Each notebook in docs/notebooks/ becomes a page of the site, with what its code prints and draws.

A notebook is a Python file of cells, jupytext's percent format. Its code runs in this process, so that the site needs
no Jupyter kernel.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = sorted(Path(__file__).with_name("notebooks").glob("*.py"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Run the notebooks, and add their pages and pictures."""
    plt.switch_backend("agg")
    for notebook in NOTEBOOKS:
        text, pictures = run_notebook(notebook)
        files.append(File.generated(config, f"{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    return files


def run_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Run the cells of a notebook in order, and return its page.

    Args:
        path: the notebook.

    Returns:
        (the page in Markdown; file name of each picture on it -> the picture, PNG).
    """
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    names: dict[str, object] = {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "markdown":
            blocks.append(cell.source)
            continue
        blocks.append(f"```python\n{cell.source}\n```")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell.source, path, "exec"), names)  # noqa: S102
        if printed.getvalue():
            blocks.append(f"```\n{printed.getvalue().rstrip()}\n```")
        for number in plt.get_fignums():
            picture = io.BytesIO()
            plt.figure(number).savefig(picture, dpi=150)
            name = f"{path.stem}_{len(pictures) + 1}.png"
            pictures[name] = picture.getvalue()
            blocks.append(f"![Figure of the code above]({name})")
        plt.close("all")
    return "\n\n".join(blocks), pictures
