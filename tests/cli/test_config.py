from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from ddpdoctor.cli.arguments import config
from ddpdoctor.cli.arguments.parsing import build_parser
from ddpdoctor.cli.commands import COMMANDS, load_command
from ddpdoctor.errors import UsageError
from tests.cli.conftest import Run, Stage


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_settings_are_options_and_the_command_line_wins(run: Run, stage: Stage, tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [tool.ddpdoctor]
        select = ["NET001", "ENV"]
        verbose = true
        [tool.ddpdoctor.check]
        nproc_per_node = 3
        stage_timeout = { ddp = 60, smoke = "5s" }
        only = "facts,smoke,ddp"
        timeout = 90
        """,
    )
    out = run("check").out
    assert "net.port.free" in out
    assert "2 of 2 checks" in out
    (request,) = stage.requests
    assert (request.nproc, request.timeout, request.limits) == (3, 90.0, {"ddp": 60.0, "smoke": 5.0})
    assert request.stages == ("facts", "smoke", "ddp")
    assert "net.port.free" not in run("check", "--nproc", "5", "-q", "--skip", "bandwidth").out
    assert stage.requests[1].nproc == 5
    assert "bandwidth" not in stage.requests[1].stages
    assert "tcp" in stage.requests[1].stages


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_the_page_on_configuration_is_accepted(command: str, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    write(tmp_path, example)
    settings = config.load_config(command, build_parser(command, load_command(command)), tmp_path)
    assert settings.keys() >= {
        "check": {"nproc", "skip"},
        "run": {"live", "rerun"},
        "lint": {"baseline"},
    }.get(command, set())


def test_sub_table_wins_over_the_common_table(run: Run, stage: Stage, tmp_path: Path) -> None:
    write(tmp_path, "[tool.ddpdoctor]\nnproc = 2\n[tool.ddpdoctor.check]\nnproc = 3\n")
    run("check")
    assert stage.requests[0].nproc == 3


def test_options_of_other_commands_in_the_common_table_are_ignored(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "[tool.ddpdoctor]\nnproc = 2\n")
    assert run("list").code == 0


def test_outputs_on_the_command_line_replace_configured_ones(run: Run, tmp_path: Path) -> None:
    write(tmp_path, '[tool.ddpdoctor]\njson = "configured.json"\n')
    assert run("check").code == 0
    assert (tmp_path / "configured.json").exists()
    (tmp_path / "configured.json").unlink()
    assert run("check", "--json", "given.json").code == 0
    assert (tmp_path / "given.json").exists()
    assert not (tmp_path / "configured.json").exists()


def test_nearest_file_above_is_used(
    run: Run, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[tool.ddpdoctor]\nnproc = 2\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    run("check")
    assert stage.requests[0].nproc == 2
    write(tmp_path / "a", "[project]\nname = 'x'\n")
    run("check")
    assert stage.requests[1].nproc is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tool.ddpdoctor]\nnporc = 2\n", "[tool.ddpdoctor] has no setting 'nporc'", "nproc = …"),
        (
            "[tool.ddpdoctor.check]\nstage-timeot = 2\n",
            "[tool.ddpdoctor.check] has no setting",
            "stage_timeout = …",
        ),
        ("[tool.ddpdoctor]\nnproc-per-node = 2\n", "no setting 'nproc-per-node'", "nproc_per_node = …"),
        ("[tool.ddpdoctor]\nnproc = 0\n", "pyproject.toml [tool.ddpdoctor]: --nproc: 0 ranks", "--nproc 4"),
        ("[tool.ddpdoctor]\nnproc = true\n", "nproc must be a string or a number", "nproc = "),
        ("[tool.ddpdoctor]\nquiet = 1\n", "quiet must be true or false", "quiet = true"),
        ("[tool.ddpdoctor.chek]\nnproc = 1\n", "no setting 'chek'", "[tool.ddpdoctor.check]"),
        ("[tool.ddpdoctor.check]\nhelp = true\n", "no setting 'help'", "one of: "),
        (
            '[tool.ddpdoctor.check]\nonly = "facts"\nmodel = "a:b"\n',
            "--model was given, but the stage ddp, which uses it, is not selected",
            "--only facts,ddp",
        ),
        ("[tool.ddpdoctor]\nselect = [[1]]\n", "select must be a string, a number or a list", ""),
        ("[tool]\nddpdoctor = 3\n", "[tool.ddpdoctor] must be a table", ""),
        ("[tool.ddpdoctor]\ncheck = 3\n", "check must be a table", ""),
        ("[tool.ddpdoctor\n", "is not valid TOML", ""),
    ],
)
def test_bad_settings_are_usage_errors_with_the_file(
    run: Run, stage: Stage, tmp_path: Path, text: str, message: str, hint: str
) -> None:
    write(tmp_path, text)
    result = run("check")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert hint in result.err
    assert "pyproject.toml" in result.err or "stage" in message
    assert "\n  try: " in result.err
    assert not stage.requests


def test_settings_of_stages_that_the_command_line_leaves_out_are_set_aside(
    run: Run, stage: Stage, tmp_path: Path
) -> None:
    write(
        tmp_path,
        """
        [tool.ddpdoctor.check]
        model = "a:b"
        iters = 5
        stage_timeout = { ddp = 60, facts = 5 }
        """,
    )
    assert run("check", "--only", "facts").code == 0
    (request,) = stage.requests
    assert (request.model, request.iterations, request.limits) == (None, None, {"facts": 5.0})
    refused = run("check", "--only", "facts", "--model", "c:d")
    assert refused.code == 2
    assert "--only facts,ddp" in refused.err


def test_working_directory_that_is_gone_is_said_so(run: Run, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture of all these tests goes back
    gone.rmdir()
    result = run("check")
    assert (result.code, result.out) == (2, "")
    assert "the working directory no longer exists" in result.err


def test_file_without_our_name_is_not_even_parsed(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "this is [not TOML")
    assert run("check").code == 0


def test_false_leaves_a_flag_out(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "[tool.ddpdoctor]\nquiet = false\n")
    assert "next:" in run("check").out


def test_python_without_toml_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[tool.ddpdoctor]\nnproc = 2\n")
    for name in config.PARSERS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError) as raised:
        config.read_table(tmp_path / "pyproject.toml")
    assert raised.value.hint == "pip install tomli"
