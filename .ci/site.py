"""Functions that mkdocs calls while it builds the site of the documentation.

README.md and CHANGELOG.md become pages, and the README's section "Cite" a page of its own. Links to files that the site
does not have become plain text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# File of the project -> page of the site. The site's first page is docs/index.md.
PAGES = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md"}
CITE = "cite.md"
NOTEBOOKS = {f"notebooks/{path.name}": f"{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.py")}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md and CHANGELOG.md, which are outside docs/, to the pages of the site."""
    texts = {page: (ROOT / source).read_text().replace("](docs/", "](") for source, page in PAGES.items()}
    overview, _, cite = texts[PAGES["README.md"]].partition("\n## Cite\n")
    texts |= {PAGES["README.md"]: overview.replace("](#cite)", f"]({CITE})"), CITE: f"# Cite\n{cite}"}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to README.md, CHANGELOG.md and notebooks at their pages, and keep only the text of links to code."""

    def of_site(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2].removeprefix("../"), link[3] or ""
        path = {**PAGES, **NOTEBOOKS}.get(path, path)
        return f"[{text}]({path}{anchor})" if files.get_file_from_path(path) else text

    return LINK.sub(of_site, markdown)
