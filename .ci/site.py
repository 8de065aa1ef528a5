"""Functions that mkdocs calls while it builds the site of the documentation.

README.md and CHANGELOG.md become pages. Links to files that the site does not have become plain text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}  # file of the project -> page of the site
NOTEBOOKS = {f"notebooks/{path.name}": f"{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.py")}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md and CHANGELOG.md, which are outside docs/, to the pages of the site."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to README.md, CHANGELOG.md and notebooks at their pages, and keep only the text of links to code."""

    def of_site(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2].removeprefix("../"), link[3] or ""
        path = {**PAGES, **NOTEBOOKS}.get(path, path)
        return f"[{text}]({path}{anchor})" if files.get_file_from_path(path) else text

    return LINK.sub(of_site, markdown)
