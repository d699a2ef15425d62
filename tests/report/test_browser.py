"""The page in a real browser: nothing leaves it, nothing hostile runs, and it can be read in every way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.html.renderer import HtmlRenderer
from ddpdoctor.report.words import clean
from tests.report.browser import Browser, needs_chromium
from tests.report.extremes import HOSTILE, sample_hostile, sample_large
from tests.report.parts import PAGES
from tests.report.samples import SAMPLES, sample_healthy, sample_nodes, sample_problems

pytestmark = [needs_chromium, pytest.mark.chromium]

CONTRAST = """
(() => {
  const channels = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => {
    const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = channels(c).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const c = getComputedStyle(node).backgroundColor, parts = channels(c);
      if (parts.length === 3 || parts[3] > 0) { return c; }
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("svg, script, .unseen, .skip")) { continue; }
    if (!node.checkVisibility()) { continue; }
    const a = light(getComputedStyle(node).color), b = light(behind(node));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) { poor.push(ratio.toFixed(2) + " " + walker.currentNode.data.trim().slice(0, 40)); }
  }
  return poor;
})()
"""
"""Texts whose contrast is below 4.5:1, the least of WCAG 2.2 (success criterion 1.4.3)."""

OPEN_ALL = "document.querySelectorAll('details').forEach(each => { each.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[[Report], Browser]]:
    """Open the page of a report as a light desktop with scripts; whatever a test changes is set back."""

    def open_page(report: Report) -> Browser:
        file = tmp_path / "report.html"
        file.write_text(HtmlRenderer().render(report, RenderOptions(pages=PAGES)), encoding="utf-8")
        browser.open(file)
        return browser

    browser.set_scheme("light")
    browser.set_size(1280, 900)
    browser.set_javascript(True)
    yield open_page
    browser.set_javascript(True)


Show = Callable[[Report], Browser]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_request_leaves_the_page_and_nothing_complains(name: str, show: Show) -> None:
    page = show(SAMPLES[name]())
    page.evaluate(OPEN_ALL)
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert len(page.requests) == 1
    assert page.requests[0].startswith("file://")
    assert page.complaints == []


def test_hostile_text_runs_nothing_and_shows_as_text(show: Show) -> None:
    page = show(sample_hostile())
    page.evaluate(OPEN_ALL)
    page.evaluate("document.querySelectorAll('a, summary, button').forEach(each => each.click())")
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    assert page.evaluate("typeof window.HIT") == "undefined"
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.querySelectorAll('img, iframe, [onerror], [onload]').length") == 0
    assert page.evaluate("[...document.links].filter(a => !/^(file|https?):/.test(a.protocol)).length") == 0
    page.evaluate(OPEN_ALL)
    text = page.text()
    for hostile in HOSTILE:
        assert " ".join(clean(hostile).split()) in " ".join(text.split())


def test_policy_stops_what_an_escape_would_miss(browser: Browser, tmp_path: Path, show: Show) -> None:
    text = HtmlRenderer().render(sample_healthy(), RenderOptions())
    injected = (
        "<script>window.HIT=1</script><p id='styled' style='color: rgb(1, 2, 3)'>x</p>"
        "<img src='https://example.invalid/x.png' onerror='window.HIT=2'>"
    )
    file = tmp_path / "injected.html"
    file.write_text(text.replace("<main>", "<main>" + injected), encoding="utf-8")
    browser.open(file)
    assert browser.evaluate("typeof window.HIT") == "undefined"
    assert browser.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(1, 2, 3)"
    assert browser.evaluate("document.querySelectorAll('.command button').length") > 0
    sent = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent" and event["params"]["type"] != "Document"
    ]
    refused = [event for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert len(sent) == len([event for event in refused if event["params"].get("blockedReason") == "csp"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme: str, show: Show) -> None:
    for report in (sample_problems(), sample_nodes(), sample_healthy()):
        page = show(report)
        page.set_scheme(scheme)
        page.evaluate(OPEN_ALL)
        assert page.evaluate(CONTRAST) == []


def test_scheme_changes_the_page(show: Show, tmp_path: Path) -> None:
    page = show(sample_problems())
    seen = []
    for scheme in ("light", "dark"):
        page.set_scheme(scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        seen.append((colour, page.screenshot(tmp_path / f"{scheme}.png")))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_page_is_complete_without_javascript(show: Show, browser: Browser) -> None:
    with_scripts = show(sample_problems()).text()
    browser.set_javascript(False)
    page = show(sample_problems())
    assert page.evaluate("document.querySelectorAll('button').length") == 0
    without = page.text()
    assert with_scripts.replace("Copy\n", "").split() == without.split()
    assert page.evaluate("document.querySelectorAll('details').length") > 3
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert "Symptoms" in page.text()


def test_copy_button_copies_the_command(show: Show) -> None:
    page = show(sample_problems())
    page.call("Page.bringToFront")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: text => {"
        " window.COPIED = text; return Promise.resolve(); }}})"
    )
    page.evaluate("document.querySelector('.fixes .command button').click()")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert page.evaluate("window.COPIED") == "sock.settimeout(10)"
    assert page.evaluate("document.querySelector('.fixes .command button').textContent") == "Copied"
    assert page.evaluate("document.querySelector('[role=status]').textContent") == "Copied to the clipboard"


@pytest.mark.parametrize("name", ["problems", "nodes", "hostile", "healthy"])
def test_page_fits_a_phone(name: str, show: Show) -> None:
    page = show(SAMPLES[name]())
    page.set_size(390, 844, mobile=True)
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_print_is_short_and_shows_what_was_unfolded(show: Show) -> None:
    page = show(sample_problems())
    seen = "document.querySelector('.about').checkVisibility({contentVisibilityAuto: true})"
    assert page.evaluate(seen) is False
    assert count_pages(page.print_pdf()) <= 3
    short = count_pages(page.print_pdf())
    page.evaluate(OPEN_ALL)
    # What was unfolded is visible once it is laid out, which a busy machine does later.
    look = f"const look = () => {seen} ? done(true) : setTimeout(look, 20); look();"
    assert page.evaluate(f"new Promise(done => {{ {look} }})") is True
    assert count_pages(page.print_pdf()) > short
    page.set_scheme("dark", "print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def count_pages(pdf: bytes) -> int:
    """Return the pages of a PDF: its page tree says how many."""
    assert pdf.startswith(b"%PDF")
    return max(int(number) for number in re.findall(rb"/Type\s*/Pages\b[^>]*?/Count\s+(\d+)", pdf))


def test_keyboard_reaches_the_verdict_first_and_every_fold(show: Show) -> None:
    page = show(sample_problems())
    page.call("Page.bringToFront")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate(
        "[...document.querySelectorAll('summary, a, button')].every(each => each.tabIndex >= 0)"
    )
    scrolling = "[...document.querySelectorAll('.scroll, pre')].every(each => each.tabIndex >= 0)"
    assert page.evaluate(scrolling)


def test_screen_reader_finds_names_and_order(show: Show) -> None:
    page = show(sample_healthy())
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    }
    roles = {role for role, _ in named}
    assert {"navigation", "main", "heading", "table", "region", "list"} <= roles
    assert not {
        name for role, name in named if role in ("image", "button", "region", "navigation") and not name
    }
    assert ("image", "Bus bandwidth of all_reduce over buffer size") in named
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(each => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_sixteen_thousand_ranks_load(show: Show) -> None:
    page = show(sample_large(256, 8))
    assert page.complaints == []
    assert "256 nodes" in page.text()
    assert page.evaluate("document.querySelector('svg.heat').getBoundingClientRect().width") > 200
