"""Pages of codes as files of a package, read strictly."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Registry, check
from ddpdoctor.judge.catalogue import find_page, read_docstring, read_page

HEAD = """\
---
code: X-toy-001
name: toy-broken
title: A toy: broken by its owner
severity: warning
since: 1.2.0
explains: X-toy-002, X-toy-003
---
"""
BODY = """
A toy does not do what it should.

## Symptoms

Toys, ``all`` of them:

    ls toys

## Wrong

```python
## not a heading
def toy():
    play()
```
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a catalogue of one page; returns the page's file."""
    module = ModuleType("toys")
    module.__path__ = [str(tmp_path / "toys")]
    monkeypatch.setitem(sys.modules, "toys", module)
    file = tmp_path / "toys" / "catalogue" / "X-toy-001.md"
    file.parent.mkdir(parents=True)
    file.write_text(HEAD + BODY)
    return file


def test_page_is_read_from_the_package_of_the_check(package: Path) -> None:
    @check("X-toy-001", id="toy.one", family="toys", needs=())
    def look(evidence: Evidence) -> list[Finding]:
        return []

    look.__module__ = "toys.checks.small"
    registry = Registry()
    registry.source = "toy"
    registry.add(check("X-toy-001", id="toy.one", family="toys", needs=())(look))
    page = registry.pages["X-toy-001"]
    assert (page.name, page.title, page.severity) == ("toy-broken", "A toy: broken by its owner", "warning")
    assert (page.since, page.source, page.explains) == ("1.2.0", "toy", ("X-toy-002", "X-toy-003"))
    assert page.file == str(package)


def test_sections_show_blocks_of_code_indented(package: Path) -> None:
    assert read_page(package).sections() == {
        "": "A toy does not do what it should.",
        "Symptoms": "Toys, ``all`` of them:\n\n    ls toys",
        "Wrong": "    ## not a heading\n    def toy():\n        play()",
    }


def test_module_without_a_catalogue_has_no_page(package: Path) -> None:
    assert find_page("X-toy-002", "toys.checks") is None
    assert find_page("X-toy-001", "sys") is None
    assert find_page("X-toy-001", "no_such_module") is None


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("code: X-toy-001\n", "must begin with front matter"),
        (HEAD.replace("since: 1.2.0\n", ""), "lacks since"),
        (HEAD.replace("since:", "sicne:"), "'sicne: 1.2.0' is not one of code, name"),
        (HEAD.replace("since: 1.2.0", "since:"), "'since:' is not one of"),
        (HEAD.replace("since:", "name:"), "once"),
        (HEAD.replace("code: X-toy-001", "code: X-toy-002"), "the name of another code"),
        (HEAD.replace("severity: warning", "severity: fatal"), "unknown severity 'fatal'"),
        (HEAD[:-4], "must begin with front matter"),
    ],
)
def test_page_that_is_not_as_it_must_be_is_refused(package: Path, head: str, words: str) -> None:
    file = package.parent.parent / "X-toy-001.md"
    file.write_text(head)
    with pytest.raises(ValueError, match=words):
        read_page(file)


def test_docstring_becomes_a_page() -> None:
    text = """A toy is broken.

    Symptoms:
        Toys.

            ls toys

    Fix:
        Mend it.
    """
    assert read_docstring(text) == (
        "A toy is broken.\n\n## Symptoms\n\nToys.\n\n    ls toys\n\n## Fix\n\nMend it."
    )
    assert read_docstring(None) == ""
