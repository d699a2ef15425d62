"""The documentation as a site: it builds without a warning and without the network, and every link in it leads somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.report.browser import Browser, needs_chromium

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "srcset", "poster", "data")
"""Attributes that make a browser fetch something; so does the href of a link element."""

needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed (pip install -e '.[docs]')",
)


class Page(HTMLParser):
    """What a page links to, fetches, and can be linked to at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and value and tag == "a":
                self.links.append(value)
            elif value and (name in SOURCES or (name == "href" and tag == "link")):
                self.fetched.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as the documentation says, with any request to the network failing."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "http_proxy": nowhere, "https_proxy": nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def read(site: Path) -> dict[Path, Page]:
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    assert len(pages) > 100
    return pages


@needs_mkdocs
def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages, dead = read(site), []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            missing = not target.is_file()
            if not missing and parts.fragment and target in pages:
                missing = unquote(parts.fragment) not in pages[target].anchors
            if missing:
                dead.append(f"{file.relative_to(site)}: {link}")
    assert dead == []
    # Nor does it fetch anything from elsewhere; one test, since each worker of pytest builds a site of its own.
    assert {link for page in pages.values() for link in page.fetched if urlsplit(link).netloc} == set()
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", styles) == []


@needs_mkdocs
@needs_chromium
@pytest.mark.chromium
def test_pages_fit_a_phone_and_ask_for_nothing(site: Path) -> None:
    with Browser() as browser:
        for width in (1280, 390):
            browser.set_size(width, 844, mobile=width == 390)
            for name in (
                "index",
                "quick-start",
                "symptoms/hang",
                "comparison",
                "reference/cli",
                "zh/quick-start",
            ):
                browser.open(site / f"{name}.html")
                wide = browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} px wide on {width}"
                assert [
                    each for each in browser.requests if not each.startswith(("file:", "data:", "blob:"))
                ] == []


@needs_mkdocs
def test_links_follow_files_that_have_moved_into_the_site() -> None:
    from scripts.site_hooks import rewrite

    def shown(text: str, page: str) -> str:
        return rewrite(text, ROOT / "docs" / page, page)

    code = "[COL002](../../checks/ddpdoctor_checks/catalogue/COL002.md#fix)"
    assert shown(code, "symptoms/hang.md") == "[COL002](../codes/COL002.md#fix)"
    assert shown("[how](../README.md)", "guide.md") == "[how](quick-start.md)"
    assert shown("[the room](../ddpdoctor/cli)", "architecture.md") == "the room"
    assert shown("[nothing](nowhere.md)", "guide.md") == "[nothing](nowhere.md)"
    fenced = "```\n[a](../README.md)\n```\n"
    assert shown(fenced, "guide.md") == fenced
