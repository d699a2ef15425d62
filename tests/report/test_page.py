"""The page of each kind of verdict in a real browser: what is above the fold, how long it is, its colors and folds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from ddpdoctor.evidence import Launch, RankSet
from ddpdoctor.gather.excerpts import SourceReader
from ddpdoctor.judge.finding import EvidenceItem, Finding, Fix, Where
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.html.renderer import HtmlRenderer
from ddpdoctor.report.model import Job
from tests.report.browser import Browser, needs_chromium
from tests.report.parts import PAGES
from tests.report.samples import sample_healthy, sample_problems
from tests.report.test_pictures import look, make_crash, make_incident, make_training
from tests.report.test_standstill_view import make_evidence

WIDE, PHONE = (1280, 800), (390, 844)
LEAST_TEXT, LEAST_GRAPHIC = 4.5, 3.0
"""Contrast of text and of what has to be told apart: WCAG 2.2, success criteria 1.4.3 and 1.4.11 (level AA)."""
STYLE = resources.files("ddpdoctor.report.html").joinpath("report.css").read_text()
SOURCE = "\n".join(f"    value_{number} = step(value_{number - 1})" for number in range(1, 60))


def make_hang(ranks: int = 3) -> Report:
    """A hang of some ranks, with all that a finding of a run has."""
    evidence = replace(make_evidence(ranks), launch=Launch(command="run", world_size=ranks))
    message = (
        "Ranks 0, 2 are blocked in all_reduce #6 (train.py:10, step); rank 1 never reached it: it is blocked in "
        "barrier #6 (train.py:30, main), because its loader gives one batch less than those of the other ranks."
    )
    places = (
        Where(RankSet([1]), "culprit", "train.py", 30, "main", "value_30 = step(value_29)"),
        Where(RankSet([1]), "condition", "train.py", 28, "if", "value_28 = step(value_27)"),
        Where(RankSet([0, 2]), "victim", "train.py", 10, "step", "value_10 = step(value_9)"),
        Where(RankSet([1]), "caller", "train.py", 55, "<module>", "value_55 = step(value_54)"),
    )
    finding = Finding(
        message=message,
        ranks=RankSet([1]),
        victims=RankSet([0, 2]),
        where=places,
        evidence=tuple(EvidenceItem("stack", f"observation {number} of the ranks") for number in range(5)),
        fix=(
            Fix(
                "give every rank the same number of batches", code="sampler = DistributedSampler(data)\nx = 1"
            ),
            Fix(
                "or use the Join context manager",
                code="with Join([model]):\n    for batch in loader:\n        …",
            ),
        ),
        code="BKD011",
        name="collective-missing",
        severity="error",
    )
    problems = sample_problems()
    rows = (
        replace(problems.checks[0], family="hangs", codes=("BKD011",), status="fail"),
        *problems.checks[1:],
    )
    return replace(
        problems,
        command="run",
        findings=(finding,),
        checks=rows,
        evidence=evidence,
        verdict=replace(problems.verdict, headline=message, code="BKD011"),
        world=replace(problems.world, size=ranks),
        job=Job(1, None, "ddpdoctor"),
    )


def make_kind(kind: str) -> Report:
    """Return a report whose verdict is of one kind."""
    if kind in ("hang", "check", "incident"):
        return {"hang": make_hang, "check": sample_healthy, "incident": make_incident}[kind]()
    hang = make_hang()
    evidence = {
        "crash": make_crash(),
        "silent": make_training([look(1, range(4)), look(2, [0, 1, 2], [3], norms=(1.0, 1.001))]),
    }[kind]
    family = {"crash": "crash", "silent": "training"}[kind]
    rows = tuple(replace(row, family=family) if row.family == "hangs" else row for row in hang.checks)
    code = 1 if kind == "crash" else 0
    return replace(hang, evidence=evidence, checks=rows, job=Job(code, None, None))


KINDS = ("hang", "crash", "silent", "incident", "check")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


def open_report(browser: Browser, report: Report, folder: Path) -> Browser:
    """Write the page of a report and show it as a light desktop."""
    (folder / "train.py").write_text(SOURCE)
    options = RenderOptions(pages=PAGES, read_source=SourceReader(str(folder)))
    file = folder / "report.html"
    file.write_text(HtmlRenderer().render(report, options), encoding="utf-8")
    browser.set_javascript(False)  # the first picture needs none
    browser.set_scheme("light")
    browser.set_size(*WIDE)
    browser.open(file)
    return browser


def check_page(page: Browser, folder: Path, name: str) -> None:
    """Look at a page in light, dark and on a phone: nothing is wider than the screen, and the picture is in sight."""
    for mode in ("light", "dark", "phone"):
        page.set_scheme("dark" if mode == "dark" else "light")
        page.set_size(*(PHONE if mode == "phone" else WIDE), mobile=mode == "phone")
        width, height = PHONE if mode == "phone" else WIDE
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, mode)
        box = page.evaluate(
            "(() => { const one = [...document.querySelectorAll('main svg:not(.icon):not(.bar)')]"
            ".find(each => each.getBoundingClientRect().width > 0);"
            " const r = one.getBoundingClientRect(); return [r.top, r.bottom, r.width]; })()"
        )
        top, bottom, wide = box
        assert wide > 80, (name, mode)
        assert 0 < top < height, (name, mode, box)  # it begins above the fold
        if mode != "phone":
            assert bottom < height, (name, mode, box)  # and is seen whole
        picture = page.screenshot(folder / f"{name}-{mode}.png")
        assert len(picture) > 10_000


@needs_chromium
@pytest.mark.chromium
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "hang" else pytest.mark.long) for kind in KINDS]
)
def test_first_picture_is_above_the_fold_and_nothing_overflows(
    kind: str, browser: Browser, tmp_path: Path
) -> None:
    check_page(open_report(browser, make_kind(kind), tmp_path), tmp_path, kind)


@needs_chromium
@pytest.mark.chromium
def test_a_hang_of_three_ranks_fits_two_screens_and_three_sheets(browser: Browser, tmp_path: Path) -> None:
    page = open_report(browser, make_hang(), tmp_path)
    assert page.evaluate("document.documentElement.scrollHeight") <= 2 * WIDE[1]
    tree = re.findall(rb"/Type\s*/Pages\b[^>]*?/Count\s+(\d+)", page.print_pdf())
    assert 1 <= max(map(int, tree)) <= 3
    # the guard and the call are in one frame, with their numbers
    frames = page.evaluate("[...document.querySelectorAll('.source')].map(each => each.innerText)")
    assert len(frames) == 1
    assert re.search(r"28\s+value_28 = .*condition.*\n29\s.*\n30\s+value_30 = .*root cause", frames[0])
    assert page.text().count("because its loader gives one batch less") == 1


@needs_chromium
@pytest.mark.chromium
def test_every_fold_is_reached_by_the_keyboard_and_shows_its_focus(browser: Browser, tmp_path: Path) -> None:
    page = open_report(browser, make_hang(), tmp_path)
    page.call("Page.bringToFront")
    folds = page.evaluate(
        "[...document.querySelectorAll('summary')].filter(each => each.checkVisibility())"
        ".map(each => each.innerText)"
    )
    assert len(folds) > 8
    seen = []
    for _ in range(200):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        now = page.evaluate(
            "(() => { const one = document.activeElement; const style = getComputedStyle(one);"
            " return [one.tagName, one.innerText, style.outlineStyle, parseFloat(style.outlineWidth)]; })()"
        )
        tag, text, outline, width = now
        if tag == "BODY":
            break
        assert outline == "solid", now
        assert width >= 2, now
        if tag == "SUMMARY":
            seen.append(text)
    assert seen == folds


@needs_chromium
@pytest.mark.chromium
@pytest.mark.long
@pytest.mark.parametrize(
    ("demo", "kind"),
    [
        ("uneven-batches", "hang"),
        ("hidden-exception", "crash"),
        ("bypassed-wrapper", "silent"),
        ("incident", "incident"),
    ],
)
def test_pages_of_real_runs(demo: str, kind: str, browser: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddpdoctor", "demo", demo, "--directory", str(tmp_path / demo)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (report,) = [*tmp_path.glob(f"{demo}/run/report.html"), *tmp_path.glob(f"{demo}/incident.html")]
    browser.set_javascript(False)
    browser.open(report)
    assert browser.evaluate(f"document.querySelectorAll('#picture.is-{kind}').length") == 1
    check_page(browser, tmp_path, kind)
    if kind == "hang":
        browser.set_size(*WIDE)
        assert browser.evaluate("document.documentElement.scrollHeight") <= 2 * WIDE[1]
        assert "← root cause" in browser.text()
    elif kind == "silent":
        saved = json.loads((report.parent / "report.json").read_text())
        assert saved["verdict"]["code"] in browser.text()


def read_palette(scheme: str) -> dict[str, str]:
    """Return the colors of the style sheet's variables in one scheme."""
    roots = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found: dict[str, str] = {}
    for root in roots[: {"light": 1, "dark": 2}[scheme]]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", root))
    return found


def measure_contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2.2 (relative luminance of sRGB)."""

    def light(color: str) -> float:
        digits = color.removeprefix("#")
        digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_as_wcag_defines_it() -> None:
    assert measure_contrast("#000", "#ffffff") == pytest.approx(21.0)
    assert measure_contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_of_the_style_sheet_have_contrast(scheme: str) -> None:
    colors = read_palette(scheme)
    grounds = ("paper", "card", "soft")
    texts = [
        (text, ground)
        for text in ("ink", "muted")
        for ground in (*grounds, "bad-soft", "warn-soft", "ok-soft")
    ]
    texts += [(tone, f"{tone}-soft") for tone in ("bad", "warn", "ok", "odd")]
    texts += [("accent", ground) for ground in ("paper", "card")]
    texts += [(tone, "card") for tone in ("bad", "warn", "ok")]
    texts += [("card", fill) for fill in ("bad", "accent", "odd")]  # names in filled boxes
    texts += [("ink", f"q{number}") for number in range(6)]  # figures in a heat map
    poor = {
        f"{one} on {other}": round(ratio, 2)
        for one, other in texts
        if (ratio := measure_contrast(colors[one], colors[other])) < LEAST_TEXT
    }
    assert not poor
    # what is drawn: states of ranks, curves, the line where ranks diverge, cells that stand out
    drawn = [(fill, "card") for fill in ("bad", "accent", "odd", "deep", "c0", "c1", "c2", "c3", "c4", "c5")]
    drawn += [("deep", "q5")]
    faint = {
        f"{one} on {other}": round(ratio, 2)
        for one, other in drawn
        if (ratio := measure_contrast(colors[one], colors[other])) < LEAST_GRAPHIC
    }
    assert not faint
