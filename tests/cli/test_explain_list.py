from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddpdoctor.cli import index as indexes
from ddpdoctor.cli.explain import render_page
from ddpdoctor.cli.index import Index, Page, Row
from ddpdoctor.cli.output.display import Display
from ddpdoctor.cli.searching import search_pages
from ddpdoctor.judge import Registry
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run


@pytest.mark.parametrize("word", ["NET001", "net001", "port-in-use", "PORT-IN-USE"])
def test_explain_by_code_or_name(run: Run, word: str) -> None:
    result = run("explain", word)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "NET001 port-in-use · error · since 0.1.0"
    assert "Symptoms" in lines
    assert "  A port that somebody holds." in lines
    assert lines[-1] == "Checks: net.port.free (check)"


def test_wide_paragraphs_are_filled_anew_but_lists_and_links_stay() -> None:
    prose = "word " * 20 + "\nand more"
    link = "https://example.org/" + "x" * 90
    page = Page("A001", "n", "t", "error", "1", "d", f"Summary.\n\n## Fix\n\n{prose}\n\n{link}\n{link}")
    index = Index([page], [Row("a.b", ["A001"], "f", [], "d", ["check"])], [], [], [])
    lines = render_page(page, index, Display(color=False, ascii=False, width=80)).splitlines()
    start = lines.index("Fix") + 1
    assert lines[start : start + 2] == ["  " + "word " * 14 + "word", "  " + "word " * 5 + "and more"]
    assert lines.count(f"  {link}") == 2
    assert "A001 n · error · since 1 · from d" in lines


def test_explain_unknown_name_suggests(run: Run) -> None:
    result = run("explain", "port-in-us")
    assert (result.code, result.out) == (2, "")
    assert "try: ddpdoctor explain port-in-use" in result.err


def test_explain_code_without_a_check_says_so(run: Run) -> None:
    result = run("explain", "col002")
    assert result.code == 2
    assert "this version has no check for COL002" in result.err
    assert "try: ddpdoctor list" in result.err


def test_explain_needs_a_word(run: Run) -> None:
    result = run("explain")
    assert result.code == 2
    assert "CODE|name|WORDS" in result.err


def test_list_shows_findings_by_family_with_their_checks(run: Run) -> None:
    result = run("list")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "network"
    assert "  NET001 port-in-use [error] The port is taken" in lines
    assert "      net.port.free" in lines
    assert "environment" in lines
    assert "3 checks, 3 findings; run `ddpdoctor explain CODE` for details" in lines
    assert "formats (--format NAME -o FILE)" in lines
    assert "  markdown    Markdown for an issue or a step summary" in lines


def test_list_selects_and_tells_more(run: Run) -> None:
    out = run("list", "--select", "ENV", "-v").out
    assert "NET001" not in out
    assert "needs nodes; since 0.1.0" in out
    assert "net.port.free" not in run("list", "-q").out
    assert run("list", "--select", "ENX").code == 2


def test_list_names_plugins_and_those_that_failed(run: Run, entries: list[Entry]) -> None:
    def fail() -> object:
        raise ImportError("gone")

    entries.append(Entry("bad-dist", CHECKS, "it", fail))  # type: ignore[arg-type]  # it never returns
    out = run("list").out
    assert "✖ not loaded: bad-dist (ddpdoctor.checks): ImportError: gone" in out


def test_second_call_reads_the_index_and_imports_no_checks(
    run: Run, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test beside this one may write into a folder of sys.path.
    monkeypatch.setattr(indexes, "_folders", dict)
    first = run("list").out

    def fail() -> object:
        raise AssertionError("was imported again")

    entries[0] = Entry("ddpdoctor", CHECKS, "builtin", fail)  # type: ignore[arg-type]  # it never returns
    assert run("list").out == first
    assert run("explain", "NET001").code == 0


def test_index_is_made_anew_when_a_module_with_checks_changes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("")
    index, _ = indexes.build_index()
    monkeypatch.setattr(indexes, "build_index", lambda: (index, {str(module)}))
    indexes.load_index()
    path = indexes._cache_path()
    assert path is not None
    assert indexes._read_cache(path) == index
    module.write_text("# changed")
    assert indexes._read_cache(path) is None


def test_index_is_made_anew_when_a_page_changes() -> None:
    index, files = indexes.build_index()
    ours = {page.code for page in index.pages if page.source == "ddpdoctor"}
    assert ours <= {Path(file).stem for file in files if file.endswith(".md")}


def test_index_is_made_anew_when_something_is_installed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    path = indexes._cache_path()
    for _ in range(20):  # a test beside this one may write into another folder of sys.path
        index = indexes.load_index()
        if indexes._read_cache(path) == index:
            break
    assert indexes._read_cache(path) == index
    (site / "new_dist-1.0.dist-info").mkdir()
    os.utime(site, ns=(1, 1))
    assert indexes._read_cache(path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": [1, "0.1.0"], "folders": 3}']
)
def test_damaged_index_is_ignored(run: Run, tmp_path: Path, text: str) -> None:
    run("list")
    (path,) = (tmp_path / "cache" / "ddpdoctor").iterdir()
    json.loads(path.read_text())
    path.write_text(text)
    assert run("list").code == 0
    assert json.loads(path.read_text())["format"]


def test_cache_that_cannot_be_written_is_no_problem(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    result = run("list")
    assert (result.code, result.err) == (0, "")


def test_distribution_without_any_check_is_an_error(run: Run, entries: list[Entry]) -> None:
    def register(registry: Registry) -> None:
        pass

    entries[0] = Entry("ddpdoctor", CHECKS, "builtin", lambda: register)
    result = run("list")
    assert result.code == 3
    assert "this installation has no checks" in result.err


BARRIER = Page(
    "A001",
    "collective-missing",
    "Some ranks never reach a collective",
    "error",
    "1",
    "ddpdoctor",
    "Lead.\n\n## Symptoms\n\nThe job hangs at a barrier.\n\n* `Timed out waiting … ms for recv operation to complete`\n",
)
CLOSED = Page(
    "A002",
    "rank-finished-early",
    "A rank exited while others need it",
    "error",
    "1",
    "ddpdoctor",
    "Lead.\n\n## Symptoms\n\n* `Connection closed by peer [127.0.0.1]:…`\n\n## Fix\n\nEnd with a barrier.\n",
)
LATER = Page(
    "A003",
    "exception-uncaught",
    "A rank raised",
    "error",
    "1",
    "ddpdoctor",
    "Lead.\n\n## Symptoms\n\n* `error_file: <N/A>`\n* `Connection closed by peer` on the other ranks\n",
)


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("barrier", ["A001", "A002"]),
        ("RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:41022", ["A002", "A003"]),
        ("timed out waiting 1800000ms for recv operation", ["A001"]),
        ("why does my job hang", ["A001"]),
        ("no such words anywhere", []),
    ],
)
def test_words_find_pages_with_the_likeliest_first(words: str, codes: list[str]) -> None:
    assert [hit.page.code for hit in search_pages(words, [LATER, CLOSED, BARRIER])] == codes


def test_one_page_far_ahead_is_shown_whole_and_others_as_lines(run: Run) -> None:
    result = run("explain", "port", "taken")
    assert result.code == 0
    assert result.out.startswith("NET001 port-in-use · error")
    listed = run("explain", "harmless cores port")
    assert [line.split()[0] for line in listed.out.splitlines()[:3]] == ["NET001", "ENV011", "NET012"]
    assert listed.out.endswith("next: ddpdoctor explain NET001\n")
    assert "no page mentions 'zebra crossing'" in run("explain", "zebra", "crossing").err


def test_page_is_styled_for_a_terminal_and_plain_elsewhere() -> None:
    text = "A `store`.\n\n## Fix\n\nRun:\n\n```python\nx = 1\n```\n"
    index = Index([page := Page("A001", "n", "t", "error", "1", "d", text)], [], [], [], [])
    styled = render_page(page, index, Display(color=True, ascii=False, width=80))
    assert "\x1b[1mFix\x1b[0m" in styled
    assert "`" not in styled
    plain = render_page(page, index, Display(color=False, ascii=False, width=80))
    assert "\x1b" not in plain
    assert "      x = 1" in plain.splitlines()
