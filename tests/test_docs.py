"""The pages in docs are the pages of the program."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ddpdoctor_checks
from ddpdoctor.judge import Registry

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("script", ["write_pages.py", "write_reference.py", "draw_architecture.py"])
def test_made_pages_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    if script == "write_reference.py" and sys.version_info >= (3, 13):
        pytest.skip("argparse lays out its help in another way")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_on_lint_names_every_code_that_lint_finds() -> None:
    registry = Registry()
    ddpdoctor_checks.register(registry)
    codes = {code for each in registry.checks if each.id.startswith("lint.") for code in each.codes}
    page = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    assert len(codes) > 40
    assert sorted(code for code in codes if code not in page) == []


LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
FENCED = re.compile(r"^( *)(```+).*?^ *\2", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*/*/README.md"),
        *ROOT.glob("*/README.md"),
    ]
)


def prose(page: Path) -> str:
    """Return a page without its blocks and pieces of code."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the names under which the headings of a page can be linked to, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower().replace("`", "")
        kept = [c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN"]
        found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_first_picture_is_a_run_that_rests_where_motion_is_not_wanted() -> None:
    text = (ROOT / "docs" / "images" / "run.svg").read_text(encoding="utf-8")
    picture = ElementTree.fromstring(text)
    shown = " ".join("".join(picture.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())
    assert "ddpdoctor run --nproc 4 train.py" in shown
    assert "Rank 0 waits in all_reduce #1 (train.py:7, log_loss)" in shown
    # Only where motion is welcome are lines hidden at first; nothing is fetched, and nothing runs.
    assert re.findall(r"(@media [^{]*)\{[^}]*opacity: 0", text) == [
        "@media (prefers-reduced-motion: no-preference) "
    ]
    assert re.findall(r"opacity: 0", text) == ["opacity: 0"]
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert not list(picture.iter("{http://www.w3.org/2000/svg}script"))
    assert len(text) < 40_000
