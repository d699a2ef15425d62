"""Hooks of mkdocs (mkdocs.yml): pages of the repository outside docs/ become pages of the site, and links follow.

The Markdown links to files as they lie in the repository, so that it reads well there. In the site a link to a page of
the catalogue or of the project leads to its copy; one to any other file of the repository is shown as text. A link to
nothing stays as it is, and ``mkdocs build --strict`` fails on it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.judge.catalogue import read_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CATALOGUE = ROOT / "checks" / "ddpdoctor_checks" / "catalogue"
PROJECT = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "README.md": "quick-start.md",
    "README.zh-CN.md": "zh/quick-start.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "tests/newcomer/README.md": "project/newcomer.md",
}
"""File of the repository -> page of the site."""
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^ *(`{3,}|~{3,})")


def sources() -> dict[Path, str]:
    """Return every file outside docs/ that has a page in the site, with that page."""
    pages = {ROOT / file: page for file, page in PROJECT.items()}
    pages |= {file: f"codes/{file.name}" for file in sorted(CATALOGUE.glob("*.md"))}
    for file in sorted(ROOT.glob("plugins/*/README.md")):
        pages[file] = f"project/plugins/{file.parent.name}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for file, page in sources().items():
        if file.exists() and not (DOCS / page).exists():
            files.append(File.generated(config, page, content=_text(file)))
    return files


def _text(file: Path) -> str:
    """Return the Markdown of a page: one of the catalogue gets its title out of its front matter."""
    if file.parent != CATALOGUE:
        return file.read_text(encoding="utf-8")
    page = read_page(file)
    body = file.read_text(encoding="utf-8").split("\n---\n", 1)[1]
    return f"# {page.code} {page.name}\n\n*{page.severity}* · since {page.since}\n{body}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to the site's addresses."""
    there = {site: file for file, site in sources().items() if not (DOCS / site).exists()}
    here = there.get(page.file.src_uri, DOCS / page.file.src_uri)
    return rewrite(markdown, here, page.file.src_uri)


def rewrite(markdown: str, file: Path, page: str) -> str:
    """Return Markdown with the links of a file of the repository as those of a page of the site."""
    pages = sources()
    fenced = ""
    lines = []
    for line in markdown.splitlines(keepends=True):
        fence = FENCE.match(line)
        if fence and (not fenced or fence[1].startswith(fenced)):
            fenced = "" if fenced else fence[1]
        lines.append(line if fenced else LINK.sub(lambda match: _link(match, file, page, pages), line))
    return "".join(lines)


def _link(match: re.Match[str], file: Path, page: str, pages: dict[Path, str]) -> str:
    target, _, anchor = match["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return match[0]
    path = (file.parent / target).resolve()
    if path in pages:
        site = pages[path]
    elif path.is_relative_to(DOCS) and path.is_file():
        site = path.relative_to(DOCS).as_posix()
    elif path.exists():
        return match["text"]
    else:
        return match[0]
    relative = os.path.relpath(site, os.path.dirname(page) or ".")
    return f"{match['picture']}[{match['text']}]({relative}{'#' if anchor else ''}{anchor})"
