from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpdoctor.evidence import PortProbe
from ddpdoctor.testing import make_world
from tests.cli.conftest import Run, Stage


@pytest.fixture
def saved(run: Run, stage: Stage, tmp_path: Path) -> Path:
    stage.evidence = make_world(ports=(PortProbe(0, 29500, "taken", holder_pid=4242),))
    run("check", "--json", "saved.json")
    return tmp_path / "saved.json"


def test_saved_report_looks_as_it_did(run: Run, stage: Stage, saved: Path) -> None:
    before = run("check").out
    result = run("report", "saved.json")
    assert result.code == 0
    assert [line for line in result.out.splitlines() if " s" not in line] == [
        line for line in before.splitlines() if " s" not in line
    ]


def test_saved_report_becomes_other_formats(run: Run, saved: Path, tmp_path: Path) -> None:
    assert run("report", "saved.json", "--html", "out.html", "--json", "again.json").code == 0
    assert "NET001" in (tmp_path / "out.html").read_text()
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(saved.read_text())


def test_report_from_stdin(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(saved.read_bytes())))
    assert run("report", "-").out.startswith("ddpdoctor ✖ NET001")


def test_missing_file_is_a_usage_error(run: Run) -> None:
    result = run("report", "nowhere.json")
    assert (result.code, result.out) == (2, "")
    assert "there is no file nowhere.json" in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "not a ddpdoctor report"),
        (b"{}", "not a ddpdoctor report"),
        (b'{"schema": "ddpdoctor.report", "schema_version": "2.0"}', "this version reads 1."),
        (b'{"schema": "ddpdoctor.report", "schema_version": "1.0"}', "damaged report"),
    ],
)
def test_file_that_is_no_report_is_one_clear_message(
    run: Run, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    result = run("report", "bad.json", "--html", "out.html")
    assert (result.code, result.out) == (3, "")
    assert "bad.json" in result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "out.html").exists()


def test_directory_is_no_report(run: Run) -> None:
    result = run("report", ".")
    assert result.code == 2
    assert "Is a directory" in result.err


def test_two_reports_are_compared(run: Run, stage: Stage, saved: Path, tmp_path: Path) -> None:
    stage.evidence = make_world()
    run("check", "--json", "after.json")
    fixed = run("report", "saved.json", "--compare", "after.json")
    assert fixed.code == 0
    assert fixed.out.startswith("ddpdoctor compared · nothing new · 1 resolved · ")
    assert "  gone      NET001 port-in-use: " in fixed.out
    broken = run("report", "after.json", "--compare", "saved.json").out
    assert "1 new" in broken.splitlines()[0]
    assert "  new       NET001 port-in-use: " in broken
    assert "net.port.free" in broken
    same = run("report", "saved.json", "--compare", "saved.json").out
    assert "no finding was resolved or is new" in same
    assert "  in both   NET001" in same


def test_comparison_has_no_other_form_and_reads_stdin_once(run: Run, saved: Path) -> None:
    refused = run("report", "saved.json", "--compare", "saved.json", "--html", "x.html")
    assert refused.code == 2
    assert "in the terminal only" in refused.err
    assert run("report", "-", "--compare", "-").code == 2
    assert run("report", "saved.json", "--compare", "nowhere.json").code == 2


def test_comparison_says_what_else_is_different(run: Run, stage: Stage, saved: Path) -> None:
    """A measurement that is no number is none."""
    data = json.loads(saved.read_text())
    data["job"] = {"exit_code": None, "signal": 9, "stopped_by": None}
    data["world"]["backend"] = None
    rows = data["measurements"]["bandwidth"]
    assert len(rows) > 1
    rows[0]["busbw"] = "inf"
    for row in rows[1:]:
        row["busbw"] *= 2
    Path("other.json").write_text(json.dumps(data))
    compared = run("report", "saved.json", "--compare", "other.json")
    assert compared.code == 0, compared.err
    out = " ".join(compared.out.split())
    assert "job none was watched → ended by signal 9" in out
    assert "backend gloo → unknown" in out
    assert "(2.00 times)" in out
    assert "torch" not in out.partition("in both")[2]
    both = run("report", "other.json", "--compare", "other.json").out
    assert "(" not in both.partition("in both")[2]


def test_why_shows_what_a_finding_follows_from_and_what_was_ruled_out(run: Run, saved: Path) -> None:
    result = run("report", "saved.json", "--why", "net001")
    assert result.code == 0
    assert result.out.startswith("NET001 port-in-use")
    assert "observed" in result.out
    assert "rule" in result.out
    assert "confidence  high" in result.out
    assert "ruled out" in result.out
    assert "address-family-noise NET012" in result.out
    assert run("report", "saved.json", "--why").out == result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--why", "COL002"), "has NET001"), (("--why", "--html", "x.html"), "no other form")],
)
def test_why_of_what_is_not_there_says_what_is(
    run: Run, saved: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("report", "saved.json", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_why_of_a_healthy_report(run: Run, stage: Stage) -> None:
    stage.evidence = make_world()
    run("check", "--json", "good.json")
    assert run("report", "good.json", "--why").out.startswith("The report has no findings.")
