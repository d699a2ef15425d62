from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import CodePage, Finding
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.html.renderer import HtmlRenderer
from tests.report.extremes import sample_hostile, sample_large
from tests.report.parts import PAGES
from tests.report.samples import SAMPLES, sample_error, sample_healthy, sample_problems

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Tree(HTMLParser):
    """Checks that tags nest, and collects them with their attributes, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": self.styles}.get(inside, self.words).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r" ([,:])", r"\1", " ".join(" ".join(self.words).split()))


def render(report: Report, pages: dict[str, CodePage] | None = None) -> str:
    return HtmlRenderer().render(report, RenderOptions(pages=pages))


EVERYTHING: dict[str, Callable[[], Report]] = {**SAMPLES, "large": lambda: sample_large(64, 8)}


@pytest.mark.parametrize("name", EVERYTHING)
def test_page_is_well_formed_and_asks_for_nothing(name: str) -> None:
    text = render(EVERYTHING[name](), PAGES)
    text.encode("utf-8")
    tree = Tree(text)
    assert tree.open == []
    names = {tag for tag, _ in tree.tags}
    assert not names & {"link", "img", "iframe", "object", "embed", "form", "base", "image", "foreignobject"}
    for tag, attributes in tree.tags:
        assert "style" not in attributes, tag
        assert not [key for key in attributes if key.startswith("on")], tag
        assert not {"src", "srcset", "xlink:href", "action", "background"} & set(attributes), tag
        href = attributes.get("href", "#")
        assert href.startswith("#") or (tag == "a" and re.match(r"https?://", href)), href
    assert not re.search(r"url\(|@import", tree.styles[0])


@pytest.mark.parametrize("name", EVERYTHING)
def test_ids_are_unique_and_links_lead_somewhere(name: str) -> None:
    tree = Tree(render(EVERYTHING[name](), PAGES))
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tree.tags:
        wanted = [attributes[key] for key in ("aria-labelledby", "aria-describedby") if key in attributes]
        if attributes.get("href", "").startswith("#"):
            wanted.append(attributes["href"][1:])
        assert set(wanted) <= set(ids), wanted


def test_policy_allows_just_this_style_and_script() -> None:
    tree = Tree(render(sample_hostile()))
    assert len(tree.scripts) == 1
    assert len(tree.styles) == 1
    policy = next(m["content"] for m in tree.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    for name, text in (("script-src", tree.scripts[0]), ("style-src", tree.styles[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    first = [tag for tag, attributes in tree.tags if tag in ("style", "script") or "http-equiv" in attributes]
    assert first[0] == "meta"


def test_verdict_comes_first_with_code_and_count() -> None:
    report = sample_problems()
    tree = Tree(render(report))
    text = tree.text
    assert text.index("Problem found") < text.index(report.verdict.headline) < text.index("Findings", 400)
    assert f"{report.verdict.looked} of {report.verdict.of} checks ran" in text
    assert len(tree.all("h1")) == 1
    assert any(a.get("href") == "#f1" and a.get("class") == "code" for a in tree.all("a"))


def test_healthy_is_only_said_with_the_count() -> None:
    text = Tree(render(sample_healthy())).text
    assert "Healthy No problem found: 4 ranks on 1 node, gloo, torch 2.13.0" in text
    assert "20 of 23 checks ran" in text
    assert text.count("checks ran") == 1


@pytest.mark.parametrize(
    ("name", "words"), [("unknown", "Inconclusive"), ("error", "ddpdoctor failed"), ("healthy", "Healthy")]
)
def test_each_status_has_its_word(name: str, words: str) -> None:
    others = {"Inconclusive", "ddpdoctor failed", "Healthy", "Problem found"} - {words}
    text = Tree(render(SAMPLES[name]())).text
    assert words in text
    assert not any(other in text for other in others)


def test_finding_shows_all_that_it_must() -> None:
    text = Tree(render(sample_problems(), PAGES)).text
    for words in (
        "root cause",
        "high confidence",
        "ranks 0, 2-3 (not the cause)",
        "models/reader.py 61 rows = sock.recv(1 << 20) ← root cause · rank 1, in read_shard",
        "TimeoutError: no answer",
        "rank1.err:42",
        "ddpdoctor check --nproc 4 --model models.factory:build --timeout 300",
        "About BKD011 stage-timed-out: a stage was stopped at its limit",
        "Symptoms",
        "consequence",
    ):
        assert words in text, words


def test_figures_that_cannot_be_drawn_are_still_told() -> None:
    text = Tree(render(sample_error())).text
    assert "No size has a bandwidth that can be drawn." in text
    assert "unknown" in text
    assert "nan" not in text.lower().split()


def test_stacks_errors_and_exits_of_a_stage_are_shown() -> None:
    text = Tree(render(sample_problems())).text
    for words in (
        "stopped at its limit",
        "ranks 1-3 did not finish",
        "models/reader.py:61 read_shard",
        "RuntimeError: Connection closed by peer [127.0.0.1]:41231",
        "killed by signal 9: Killed",
    ):
        assert words in text, words


def test_closing_tells_how_to_run_again_and_what_is_missing() -> None:
    report = replace(sample_problems(), invocation=("ddpdoctor", "check", "--model", "a b:c"))
    text = Tree(render(report)).text
    assert "ddpdoctor check --model 'a b:c'" in text
    assert "ddpdoctor explain BKD011" in text
    assert "Evidence not collected" in text
    assert "bandwidth ddp was stopped at its limit" in text


def test_interruption_and_job_are_told() -> None:
    text = Tree(render(replace(sample_problems(), interrupted="SIGINT"))).text
    assert "Interrupted by SIGINT" in text
    assert "exit code 1, stopped by ddpdoctor" in text


def test_every_cut_is_stated() -> None:
    report = sample_large(64, 8)
    many = tuple(Finding(f"message {n}", code="NET001", name="x", severity="error") for n in range(120))
    text = Tree(render(replace(report, findings=report.findings + many))).text
    for words in (
        "findings: 100 of 121 shown",
        "pairs of PRF002: 12 of 63 shown",
        "evidence of PRF002: 24 of 64 shown",
        "nodes: 64 folded into",
        "ranks: 512 folded into 8 rows",
        "classes of",
    ):
        assert (words in text) is (words != "classes of"), words


def test_sizes_stay_small() -> None:
    assert len(render(sample_healthy(8), PAGES).encode()) < 150 * 1024


@pytest.mark.unmeasured
def test_sixteen_thousand_ranks_are_folded() -> None:
    report = sample_large()
    assert report.world.size == 16384
    began = time.perf_counter()
    text = render(report, PAGES)
    seconds = time.perf_counter() - began
    assert len(text.encode()) < 3_000_000
    assert seconds < 30  # "a few seconds" on this machine when idle, with room for a busy one
    words = Tree(text).text
    assert "NCCL_IB_DISABLE variable 0 ranks 0-5458, 5460-16383 1 rank 5459" in words
    assert "driver version 550.54" in words
    assert "node-[0000-0681,0683-2047]" in words
    assert "2,048 nodes in 64 blocks of up to 32" in words
    assert "every 8" in words


def test_named_nodes_come_first_when_folded() -> None:
    text = Tree(render(sample_large(64, 8))).text
    world = text[text.index("Equal nodes are folded") :]
    assert world.index("named by a finding") < world.index("63 nodes")


def test_rank_sets_never_come_out_as_lists() -> None:
    report = sample_large(64, 8)
    finding = replace(report.findings[0], victims=RankSet.span(512), details={"ranks": list(range(512))})
    text = render(replace(report, findings=(finding,)))
    assert "0, 1, 2, 3" not in text
    assert "ranks 0-511" in text


def test_many_findings_are_folded_after_the_first_five() -> None:
    report = sample_problems()
    many = tuple(replace(report.findings[0], message=f"finding {number}") for number in range(8))
    tree = Tree(render(replace(report, findings=many)))
    assert "3 more findings" in tree.text
    assert tree.text.index("finding 4") < tree.text.index("3 more findings") < tree.text.index("finding 5")
    assert "more finding" not in Tree(render(report)).text
