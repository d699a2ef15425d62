"""The magic in a real IPython shell."""

from __future__ import annotations

import html
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
)
LOG = Path(__file__).parents[3] / "tests" / "gather" / "aftermath" / "key.txt"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell.instance()
    assert made.run_cell("%load_ext ddpdoctor_jupyter").success
    yield made
    InteractiveShell.clear_instance()


def test_cells_that_were_run_are_linted_by_their_numbers(shell: Any) -> None:
    shell.run_cell("def guard():\n    return 1", store_history=True)
    shell.run_cell(
        "def train(dist):\n    import torch.distributed as dist\n    if dist.get_rank() == 0:\n        dist.barrier()",
        store_history=True,
    )
    shown = shell.run_cell("%ddpdoctor lint").result
    (finding,) = shown.report.findings
    place = finding.where[0]
    assert (finding.code, place.file, place.cell, place.line) == ("COL002", "notebook", 2, 4)
    text = repr(shown)
    assert "notebook" in text
    assert "/tmp" not in text
    assert shown._repr_html_().startswith("<pre>")


def test_files_are_linted(shell: Any) -> None:
    Path("train.py").write_text(
        "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    )
    assert shell.run_cell("%ddpdoctor lint train.py").result.report.findings[0].where[0].file == "train.py"


def test_report_is_shown_in_a_frame_that_reaches_nothing(shell: Any) -> None:
    Path("train.log").write_text(LOG.read_text())
    Path("report.json").write_text(ddpdoctor.render(ddpdoctor.analyze("train.log"), "json"))
    for line in ("report report.json", "analyze train.log"):
        frame = shell.run_cell(f"%ddpdoctor {line}").result._repr_html_()
        (attributes,) = re.findall(r"^<iframe ([^>]*)></iframe>$", frame)
        assert 'sandbox="allow-scripts"' in attributes
        page = html.unescape(re.findall(r'srcdoc="([^"]*)"', attributes)[0])
        assert page.startswith("<!doctype html>")
        assert "ERR001" in page


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "usage: %ddpdoctor lint"),
        ("check", "usage: %ddpdoctor lint"),
        ("report", "usage: %ddpdoctor lint"),
        ("lint no.py", "there is no file or directory no.py"),
        ("report no.json", "there is no file no.json"),
    ],
)
def test_errors_say_what_to_do(shell: Any, capsys: pytest.CaptureFixture[str], line: str, text: str) -> None:
    done = shell.run_cell(f"%ddpdoctor {line}")
    assert text in str(done.error_in_exec)
    assert "Traceback" not in capsys.readouterr().err
