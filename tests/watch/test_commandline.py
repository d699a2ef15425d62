"""Whose option is whose on the command line of run."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from ddpdoctor.errors import UsageError
from ddpdoctor.watch.commandline import (
    TORCHRUN_FLAGS,
    TORCHRUN_VALUES,
    Split,
    find_misplaced,
    read_torchrun,
    split_arguments,
)

VALUES = ("--json", "--html", "--run-dir", "--debug")
FLAGS = ("--blocking", "-v", "-q", "--no-watch", "-h")


def split(*arguments: str) -> Split:
    return split_arguments(arguments, VALUES, FLAGS)


def test_everything_after_the_script_is_the_scripts() -> None:
    found = split("--nproc", "4", "--blocking", "train.py", "--nproc", "9", "-v", "--", "x")
    assert found == Split(
        ("--blocking",), ("--nproc-per-node", "4"), ("train.py", "--nproc", "9", "-v", "--", "x")
    )
    assert found.script == "train.py"


@pytest.mark.parametrize("value", ["1", "08", "auto", "gpu", "cpu", "xpu", "npu", "hpu"])
def test_what_torchrun_takes_for_a_number_of_ranks_is_passed_on(value: str) -> None:
    assert split("--nproc", value, "a.py").torchrun == ("--nproc-per-node", value)


@pytest.mark.parametrize("option", ["--nproc_per_node=2", "--nproc-per-node=2", "--nproc=2"])
def test_all_spellings_of_nproc_are_torchruns(option: str) -> None:
    assert split(option, "a.py").torchrun == ("--nproc-per-node", "2")


def test_options_of_torchrun_pass_as_they_were_typed() -> None:
    found = split("--rdzv_backend=c10d", "--max-restarts", "3", "-t", "3", "--standalone", "a.py", "1")
    assert found.torchrun == ("--rdzv_backend=c10d", "--max-restarts", "3", "-t", "3", "--standalone")


def test_a_module_is_no_script() -> None:
    found = split("-m", "package.train", "-x")
    assert (found.torchrun, found.target, found.script) == (("-m",), ("package.train", "-x"), None)
    assert split("--no_python", "./train.sh").script is None


def test_a_command_follows_two_dashes() -> None:
    found = split("--json", "r.json", "--", "torchrun", "--nproc-per-node", "2", "a.py")
    assert found.is_command
    assert found.own == ("--json", "r.json")
    assert found.target == ("torchrun", "--nproc-per-node", "2", "a.py")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to run"),
        (["--nproc", "2"], "nothing to run"),
        (["--"], "nothing to run after --"),
        (["--nproc"], "--nproc needs a value"),
        (["--nproc", "0", "a.py"], "--nproc: '0' is not a number of ranks"),
        (["--nproc-per-node=-2", "a.py"], "--nproc-per-node: '-2' is not a number of ranks"),
        (["--nproc", "4x", "a.py"], "'4x' is not a number of ranks"),
        (["--nproc_per_node", "gpus", "a.py"], "'gpus' is not a number of ranks"),
        (["--nproc", "train.py"], "'train.py' is not a number of ranks"),
        (["--json"], "--json needs a value"),
        (["--nproc", "4", "--", "python", "a.py"], "launches its own ranks"),
        (["--nprok", "4", "a.py"], "no option|has an option --nprok"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        split(*arguments)


def test_a_misspelt_option_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        split("--nprc", "4", "a.py")
    assert caught.value.hint == "ddpdoctor run --nproc"


def test_options_of_ours_behind_the_script_are_noticed() -> None:
    assert find_misplaced(split("a.py", "--html", "x")) == "--html"
    assert find_misplaced(split("--html", "x", "a.py")) is None


def test_the_tables_know_every_option_of_this_torch() -> None:
    for action in get_args_parser()._actions:
        for text in action.option_strings:
            if "_" in text or text in ("-h", "--help"):
                continue
            table = TORCHRUN_FLAGS if action.nargs == 0 else TORCHRUN_VALUES
            assert text in table, f"{text} is not in the table"


def test_options_of_torchrun_are_read_up_to_the_script() -> None:
    words = "--rdzv_backend=c10d --rdzv-endpoint a:1 --standalone --node_rank 1 t.py --nnodes 9".split()
    assert read_torchrun(words, {"PET_NNODES": "2", "PET_RDZV_BACKEND": "static", "NNODES": "3"}) == {
        "rdzv-backend": "c10d",
        "rdzv-endpoint": "a:1",
        "standalone": "",
        "node-rank": "1",
        "nnodes": "2",
    }
    assert read_torchrun(["--nnodes"], {}) == {}
