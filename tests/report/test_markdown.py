from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ddpdoctor.evidence import RankSet
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor.plugins import load_plugins
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.finding_places import tidy
from ddpdoctor.report.markdown import LENGTH, MarkdownRenderer
from ddpdoctor.report.marks import code, escape, escape_html, fence, table, write_page
from tests.report.extremes import HOSTILE, sample_large, sample_many, sample_still, sample_suppressed
from tests.report.samples import SAMPLES, sample_healthy, sample_problems, sample_unknown

EVERYTHING: dict[str, Callable[[], Report]] = {
    **SAMPLES,
    "large": lambda: sample_large(64, 8),
    "many": lambda: sample_many(100),
    "suppressed": sample_suppressed,
}
OURS = re.compile(r"<details><summary>[^<>]*</summary>|</details>")
"""The only HTML that may be in it."""
PLAIN = {"text", "softbreak", "code_inline", "strong_open", "strong_close"}
NASTY = [
    *HOSTILE,
    "*a* **b** _c_ __d__ ~~e~~ `f` ``g`` a_b_ _a_b __init__ a__b",
    "[x](javascript:y) ![i](http://e/i.png) <http://e> https://evil www.evil.com [r]: /u",
    "# h",
    "- item",
    "+ item",
    "1. item",
    "2) item",
    "=====",
    "---",
    "> quote",
    "    code",
    "| a | b |",
    "a\\|b \\",
    "&amp; &#64; &lt;b&gt;",
    "$x$ ${y}",
    "line\n\n# next\n```\nfence",
    "<!-- x -->",
    "```",
    "@someone #12 GH-7 user/repo#3 :smile: :100:",
]


def render(report: Report) -> str:
    text = MarkdownRenderer().render(report, RenderOptions(scrub=scrub))
    text.encode("utf-8")
    return text


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def walk(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from walk(token.children or [])


def words_of(tokens: list[Token]) -> str:
    leaves = [t.content for t in walk(tokens) if t.type in ("text", "code_inline")]
    return "".join(leaves).replace("\u200b", "")


@pytest.mark.parametrize("name", EVERYTHING)
def test_document_holds_no_markup_but_ours(name: str) -> None:
    tokens = parse(render(EVERYTHING[name]()))
    for token in walk(tokens):
        assert token.type not in ("html_inline", "link_open", "image", "s_open", "em_open"), token
        if token.type == "html_block":
            assert OURS.fullmatch(token.content.strip()), token.content
    blocks = [token.content.strip() for token in tokens if token.type == "html_block"]
    assert sum(block.startswith("<details>") for block in blocks) * 2 == len(blocks)


@pytest.mark.parametrize("text", NASTY)
def test_prose_is_shown_and_not_obeyed(text: str) -> None:
    tokens = parse(escape(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {token.type for token in tokens[1].children or []} <= {"text", "text_special"}
    assert words_of(tokens) == tidy(text)


def test_prose_of_any_signs_is_shown_and_not_obeyed() -> None:
    pick = random.Random(6)
    for _ in range(1000):
        text = "".join(pick.choices("*_`~[]()<>!#&|\\$-+=:.@1 ab/", k=pick.randint(1, 14))).strip()
        for shown in (escape(text), escape_in_row(text)):
            kinds = {token.type for token in walk(parse(shown))} - ROW
            assert kinds <= {"text", "text_special", "inline", "paragraph_open", "paragraph_close"}, text
            assert words_of(parse(shown)).removeprefix("h") == " ".join(text.split(" ")), text


ROW = {f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")}


def escape_in_row(text: str) -> str:
    return table(["h"], [[escape(text, inside=True)]])


@pytest.mark.parametrize("text", NASTY)
def test_code_is_shown_as_it_is(text: str) -> None:
    (inline,) = [token for token in parse("x " + code(text)) if token.type == "inline"]
    assert [token.type for token in inline.children or []] == ["text", "code_inline"]
    assert (inline.children or [])[1].content.strip() == tidy(text)
    row = parse(table(["h", "i"], [[code(text, table=True), "end"]]))
    cells = [token.content for token in walk(row) if token.type == "code_inline"]
    assert [cell.strip() for cell in cells] == [tidy(text)]
    assert words_of(row).endswith("end")


@pytest.mark.parametrize("text", [*NASTY, "```\n````\nx", "~~~", "a\n\nb"])
def test_block_ends_where_its_text_ends(text: str) -> None:
    for indent, before in ((0, ""), (2, "- item\n\n")):
        tokens = parse(f"{before}{fence(text, indent=indent)}\nafter")
        (block,) = [token for token in tokens if token.type == "fence"]
        assert len(block.content.splitlines()) == len(text.splitlines())
        assert words_of(tokens).endswith("after")


@pytest.mark.parametrize("text", NASTY)
def test_text_between_tags_is_text(text: str) -> None:
    shown = escape_html(text)
    assert not set("<>") & set(shown)
    assert unescape(shown).replace("\u200b", "") == tidy(text)


def test_nobody_is_mentioned_and_no_issue_is_linked() -> None:
    for shown in (escape(NASTY[-1]), escape_html(NASTY[-1])):
        assert not re.search(r"@\w|#\d|GH-\d|:smile:|:100:", unescape(shown))


def test_verdict_stands_open_and_the_rest_is_folded() -> None:
    text = render(sample_problems())
    open_part = text.partition("<details>")[0]
    assert open_part.startswith("## ddpdoctor ✖ BKD011 stage-timed-out\n")
    assert "**Ranks 2 and 3 wait in all_reduce (models/factory.py:88)" in open_part
    assert "| rank 1 | `models/reader.py:61` | `read_shard` | `rows = sock.recv(1 << 20)` |" in open_part
    assert "  ```python\n  sock.settimeout(10)\n  ```" in open_part
    summaries = re.findall(r"<summary>(.*?)</summary>", text)
    assert summaries == [
        "Evidence",
        "follows: ENV004 variables-differ: OMP_NUM_THREADS is 4 on rank 1 and 1 on the others.",
        "Checks: 16 passed, 2 failed, 4 inconclusive, 1 could not run",
        "Environment",
    ]
    assert "4 inconclusive: ddp was stopped at its limit" in text
    assert text.rstrip().endswith("See `ddpdoctor explain BKD011`. Generated by ddpdoctor 0.1.0.")


def test_endings_without_finding_are_told_apart() -> None:
    healthy = render(sample_healthy()).splitlines()
    assert healthy[0] == "## ddpdoctor ✓ healthy"
    assert healthy[2] == "20 of 23 checks ran · 4 ranks on 1 node, gloo, torch 2.13.0 · 2.83 s"
    assert render(sample_still()).startswith(
        "## ddpdoctor ? hang, root cause not determined\n\nRanks 0-1 wait in all_reduce. · "
    )
    assert render(sample_unknown()).startswith("## ddpdoctor ? inconclusive\n\nnot enough evidence")


def test_what_is_not_counted_is_told_and_not_shown() -> None:
    text = render(sample_suppressed())
    assert "Suppressed: 2 by baseline, 1 by comment." in text
    assert "- `src/a.py:7`: ignore\\[COL002\\] suppresses nothing; remove it" in text
    assert "all_reduce at" not in text


def test_thousand_findings_fit_a_comment() -> None:
    text = render(sample_many())
    assert 20_000 < len(text) <= LENGTH + 500
    said = re.search(r"^(\d+) more findings did not fit here", text, re.MULTILINE)
    assert said is not None
    assert text.count("<summary>error: COL002") + text.count("<summary>warning: COL002") + int(said[1]) == 999


def test_findings_in_source_are_counted_and_each_line_is_explained() -> None:
    text = render(sample_many(3))
    assert text.startswith("## ddpdoctor ✖ 2 errors, 1 warning in 3 files\n\n0 files read · ")
    assert "**COL002 collective-missing: all_reduce at src/part0.py:2 is called only" in text
    assert "| because of this | `src/part0.py:1` | `step` | `if rank == 0:` |" in text


def test_secrets_are_taken_out_once_more() -> None:
    token = "ghp_" + "A1b2" * 9
    finding = Finding(
        f"401 for {token}",
        code="ERR001",
        name="exception-uncaught",
        severity="error",
        where=(Where(RankSet([0]), "culprit", "/home/somebody/t.py", 3, "f", f"login({token!r})"),),
        evidence=(EvidenceItem("log", f"header\nAuthorization: Bearer {token}"),),
        fix=(Fix("Renew it.", f"export HF_TOKEN={token}"),),
    )
    report = replace(
        sample_healthy(), findings=(finding,), invocation=("ddpdoctor", "run", f"--hf-token={token}")
    )
    text = render(report)
    assert token not in text
    assert "somebody" not in text
    assert "401 for \\*\\*\\*" in text


def test_pages_of_all_codes_are_markdown_without_html() -> None:
    pages = load_plugins().checks.pages
    assert len(pages) > 50
    for page in pages.values():
        kinds = {token.type for token in walk(parse(write_page(page)))}
        assert not {"html_block", "html_inline", "image"} & kinds, page.code
        headings = [t for t in parse(write_page(page)) if t.type == "heading_open"]
        assert len(headings) >= 5, page.code
