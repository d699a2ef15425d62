"""Options of ``run`` that change what the job is given: toggles, the error file, and commands that cannot be started."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.watch.injecting import write
from tests.watch.launching import DOCTOR, Ended, doctor, environ, finish, start

OWN = {name: value for name, value in os.environ.items() if name.startswith(("TORCH_", "NCCL_", "CUDA_L"))}
"""What whoever runs the tests has set."""
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
SHOW = """
    import json, os
    names = ("TORCH_", "NCCL_", "CUDA_L")
    print(json.dumps({n: v for n, v in os.environ.items() if n.startswith(names)}))
"""


def run(tmp_path: Path, script: str, *options: str, **variables: str) -> Ended:
    write(tmp_path, script)
    command = [*doctor(tmp_path, *options), "--", sys.executable, "train.py"]
    return finish(start(command, tmp_path, tmp_path, env=environ(tmp_path, **RANK, **variables)), tmp_path)


def test_debug_sets_what_this_torch_knows_and_says_what_it_costs(tmp_path: Path) -> None:
    ended = run(tmp_path, SHOW, "--debug", "detail", "--blocking", NCCL_DEBUG="WARN")
    seen = json.loads(ended.stdout)
    assert seen["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert seen["CUDA_LAUNCH_BLOCKING"] == "1"
    assert seen["NCCL_DEBUG"] == "WARN"
    assert seen["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "run" / "recorder-")
    text = ended.stderr.decode()
    assert "--debug detail: every collective is verified by another one" in text
    assert "--blocking: every CUDA kernel launch is synchronous" in text
    assert "NCCL_DEBUG=WARN was already set and is kept" in text
    end = json.loads((tmp_path / "run" / "report.json").read_text())["evidence"]["job"][0]
    assert end["toggles"] == {
        name: value for name, value in seen.items() if name != "NCCL_DEBUG" and name not in OWN
    }


def test_without_options_nothing_is_set(tmp_path: Path) -> None:
    ended = run(tmp_path, SHOW)
    assert json.loads(ended.stdout) == OWN


def test_options_may_stand_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.ddpdoctor.run]\nblocking = true\ndebug = "info"\nrerun = "auto"\nrerun_limit = "5m"\n'
    )
    ended = run(tmp_path, SHOW, "--debug", "detail")
    seen = json.loads(ended.stdout)
    assert seen["CUDA_LAUNCH_BLOCKING"] == "1"
    assert seen["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"


@pytest.mark.parametrize("option", [(), ("--no-record",)], ids=["record", "no record"])
def test_no_error_file_is_written_where_that_is_not_wanted(tmp_path: Path, option: tuple[str, ...]) -> None:
    file = tmp_path / "error.json"
    ended = run(tmp_path, "raise KeyError('x')", *option, TORCHELASTIC_ERROR_FILE=str(file))
    assert ended.code == 1
    assert file.exists() is not bool(option)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["findings"][0]["code"] == "ERR001"


def test_a_command_that_is_not_there_ends_as_in_a_shell(tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("print(1)\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("#!/no/such/interpreter\n")
    wrong.chmod(0o755)
    for words, code, says, hint in (
        (["nosuchcommand"], 127, "there is no command 'nosuchcommand' in PATH", None),
        (["./nosuch"], 127, "there is no command './nosuch'", None),
        (
            ["plain.py", "1"],
            127,
            "there is no command 'plain.py' in PATH",
            "ddpdoctor run -- python plain.py 1",
        ),
        (["./plain.py"], 126, "./plain.py is not executable", "ddpdoctor run -- python ./plain.py"),
        (["./wrong"], 126, "the interpreter that the first line of ./wrong names does not exist", None),
        ([str(tmp_path)], 126, f"{tmp_path} is a directory", None),
    ):
        ended = finish(start([*doctor(tmp_path), "--", *words], tmp_path, tmp_path), tmp_path)
        text = ended.stderr.decode()
        assert ended.code == code, text
        assert f"ddpdoctor: {says}\n" in text
        assert re.findall(r"try: (.*)", text) == ([hint] if hint else [])
        assert not (tmp_path / "run").exists()


def test_an_option_of_torchrun_before_a_command_is_a_usage_error(tmp_path: Path) -> None:
    ended = finish(start([*DOCTOR, "--nproc", "4", "--", "echo"], tmp_path, tmp_path), tmp_path)
    assert ended.code == 2
    assert b"--nproc" in ended.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rerun", "auto", "--no-watch"), "cannot be combined with --no-watch"),
        (("--rerun-limit", "5"), "--rerun-limit needs --rerun"),
        (("--rerun", "always"), "there is no way 'always'"),
        (("--rerun-limit", "soon", "--rerun", "auto"), "'soon' is not a time"),
        (("--debug", "all"), "there is no level 'all'"),
    ],
)
def test_options_that_do_nothing_are_refused(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    ended = finish(start([*DOCTOR, *words, "--", "true"], tmp_path, tmp_path), tmp_path)
    assert (ended.code, ended.stdout) == (2, b"")
    assert says in ended.stderr.decode()
    assert not (tmp_path / "ddpdoctor-runs").exists()


def test_help_has_an_example_for_it(tmp_path: Path) -> None:
    ended = finish(start([*DOCTOR, "--help"], tmp_path, tmp_path), tmp_path)
    text = ended.stdout.decode()
    for option in ("--blocking", "--debug LEVEL", "--rerun HOW", "--rerun-limit SECONDS", "--no-record"):
        assert option in text
    assert "ddpdoctor run --rerun auto" in text
