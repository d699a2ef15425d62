"""`ddpdoctor check` when something dies, hangs, or is taken away: a verdict, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.launch.doctor import FACTORIES, Result, check, start
from tests.marks import long

SHORT = ("--nproc", "2", "--skip", "bandwidth,collectives,backends")


def model(name: str) -> tuple[str, ...]:
    return (*SHORT, "--model", f"{FACTORIES}:{name}")


@pytest.mark.long
def test_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    result = check(tmp_path, *model("killed_on_one"))
    assert result.code == 1, result.err
    assert result.first()["ranks"] == [1]
    assert "SIGKILL" in result.first()["message"]
    assert result.left == []


@pytest.mark.long
def test_rank_that_exits_is_named_with_its_code(tmp_path: Path) -> None:
    result = check(tmp_path, *model("exits_on_one"))
    assert result.code == 1, result.err
    assert result.first()["ranks"] == [1]
    assert "7" in result.first()["message"]
    assert result.left == []


@pytest.mark.long
def test_crash_in_the_model_is_named_with_its_line(tmp_path: Path) -> None:
    result = check(tmp_path, *model("crashes_on_one"))
    assert result.code == 1, result.err
    first = result.first()
    line = next(i for i, t in enumerate(FACTORIES.read_text().splitlines(), 1) if "marker: crash" in t)
    assert (first["code"], first["ranks"]) == ("DDP020", [1])
    assert [(Path(w["file"]).name, w["line"]) for w in first["where"]] == [(FACTORIES.name, line)]
    assert len(first["message"]) < 500
    assert result.left == []


@pytest.mark.long
def test_thread_that_the_model_leaves_does_not_keep_the_rank(tmp_path: Path) -> None:
    result = check(tmp_path, *model("leaves_a_thread"))
    assert result.stage("ddp")["status"] == "passed", result.out
    assert "BKD011" not in result.codes()
    assert result.left == []


@pytest.mark.long
def test_temporary_directory_that_a_rank_keeps_goes_with_it(tmp_path: Path) -> None:
    result = check(tmp_path, *model("keeps_a_temporary_directory"))
    assert result.stage("ddp")["status"] == "passed", result.out
    assert result.left == []


@pytest.mark.long
def test_hanging_factory_is_cut_with_its_line(tmp_path: Path) -> None:
    result = check(tmp_path, *model("hangs_on_one"), "--stage-timeout", "ddp=6")
    assert result.code == 1, result.err
    first = result.first()
    assert first["ranks"] == [1]
    line = next(i for i, t in enumerate(FACTORIES.read_text().splitlines(), 1) if "marker: hang" in t)
    assert any(Path(w["file"]).name == FACTORIES.name and w["line"] == line for w in first["where"])
    assert result.stage("ddp")["status"] == "cut"
    assert result.left == []


@pytest.mark.long
def test_stopped_rank_is_cut_and_ended(tmp_path: Path) -> None:
    result = check(tmp_path, *model("stopped_on_one"), "--stage-timeout", "ddp=6")
    assert result.code == 1, result.err
    assert 1 in result.first()["ranks"]
    assert result.stage("ddp")["status"] == "cut"
    assert result.left == []


@pytest.mark.long
def test_raising_factory_is_the_users(tmp_path: Path) -> None:
    result = check(tmp_path, *model("raises"))
    assert result.code == 1, result.err
    first = result.first()
    assert first["code"] == "DDP020"
    assert "KeyError" in first["message"]
    assert Path(first["where"][0]["file"]).name == FACTORIES.name
    assert result.left == []


@pytest.mark.parametrize("factory", ["returns_nonsense", "no_such_factory"])
@pytest.mark.long
def test_unusable_factory_is_said_so(tmp_path: Path, factory: str) -> None:
    result = check(tmp_path, *model(factory))
    assert result.code == 1, result.err
    assert result.codes()[0] == "DDP020"
    assert "Traceback" not in result.out + result.err
    assert result.left == []


@pytest.mark.long
def test_unused_parameters_are_named(tmp_path: Path) -> None:
    result = check(tmp_path, *model("gated"))
    assert result.code == 1, result.err
    first = result.first()
    assert first["code"] == "DDP001"
    assert "gate.weight" in first["message"] or "gate" in str(first["details"])
    assert result.left == []


@pytest.mark.parametrize("number", [signal.SIGTERM, *long(signal.SIGINT, signal.SIGHUP)])
def test_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, *model("hangs_on_one")) as running:
        running.wait_for(lambda: [e for e in running.events("rank-1") if e.get("stage") == "ddp"])
        running.process.send_signal(number)
        result = running.finish()
    assert result.code == 130, result.err
    assert result.report is not None
    assert result.report["interrupted"] == number.name
    assert result.codes() == []  # what ranks say of peers that were ended is no finding
    assert "Traceback" not in result.err
    assert result.left == []


def test_signal_while_torch_is_being_imported_ends_it_too(tmp_path: Path) -> None:
    with start(tmp_path, *model("healthy")) as running:
        running.wait_for(running.workdir)
        running.process.send_signal(signal.SIGINT)
        result = running.finish()
    assert result.code == 130, result.err
    assert result.left == []


@pytest.mark.long
def test_killed_agent_takes_its_ranks_along_and_is_reported(tmp_path: Path) -> None:
    with start(tmp_path, *model("hangs_on_one")) as running:
        running.wait_for(lambda: [e for e in running.events("rank-1") if e.get("stage") == "ddp"])
        os.kill(running.pid_of("agent"), signal.SIGKILL)
        result = running.finish()
    assert result.code == 1, result.err
    assert result.stage("ddp")["status"] == "failed"
    assert result.left == []


@pytest.mark.long
def test_killed_rank_from_outside_is_named(tmp_path: Path) -> None:
    with start(tmp_path, *model("hangs_on_one")) as running:
        running.wait_for(lambda: [e for e in running.events("rank-1") if e.get("stage") == "ddp"])
        os.kill(running.pid_of("rank-1"), signal.SIGKILL)
        result = running.finish()
    assert result.code == 1, result.err
    assert result.first()["ranks"] == [1]
    assert result.left == []


def test_killed_command_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path, *model("hangs_on_one")) as running:
        running.wait_for(lambda: [e for e in running.events("rank-1") if e.get("stage") == "ddp"])
        running.process.kill()
        running.process.wait()
        assert running.leftovers(limit_s=30.0) == []


def test_limit_of_the_whole_command_holds(tmp_path: Path) -> None:
    # Room for a busy machine to get as far as the model.
    result = check(tmp_path, *model("hangs_on_one"), "--stage-timeout", "ddp=100", "--timeout", "20")
    assert result.code == 1, result.err
    assert result.stage("ddp")["status"] == "cut"
    assert "--timeout" in result.stage("ddp")["reason"]
    assert result.left == []


@pytest.mark.long
def test_taken_port_names_its_holder(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = check(tmp_path, *SHORT, "--master-port", str(port))
    assert result.code == 1, result.err
    first = result.first()
    assert first["code"] == "NET001"
    assert str(port) in first["message"]
    assert str(os.getpid()) in str(first)
    assert result.left == []


@pytest.mark.long
def test_unresolvable_master_is_named(tmp_path: Path) -> None:
    result = check(tmp_path, *SHORT, "--master-addr", "no-such-host.invalid")
    assert result.code == 1, result.err
    assert result.first()["code"] == "NET002"
    assert "no-such-host.invalid" in result.first()["message"]
    assert result.left == []


@pytest.mark.long
def test_missing_interface_is_named(tmp_path: Path) -> None:
    result = check(tmp_path, *SHORT, environ={"GLOO_SOCKET_IFNAME": "eth9"})
    assert result.code == 1, result.err
    assert result.first()["code"] == "NET004"
    assert "eth9" in result.first()["message"]
    assert result.left == []


@pytest.mark.long
def test_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = check(tmp_path, *SHORT, "--backend", "nccl")
    assert result.code == 1, result.err
    assert result.first()["code"] == "BKD001"
    assert result.left == []


@pytest.mark.long
def test_two_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    with start(tmp_path / "a", *SHORT) as first, start(tmp_path / "b", *SHORT) as second:
        results: list[Result] = [first.finish(), second.finish()]
    assert [(r.code, r.left) for r in results] == [(0, []), (0, [])], results


@pytest.mark.long
def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    with start(tmp_path, *SHORT) as running:
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.process.stderr is not None
        err = running.process.stderr.read()
        running.process.wait()
        assert "Traceback" not in err
        assert running.leftovers() == []


def test_full_disk_loses_neither_the_text_nor_the_exit_code(tmp_path: Path) -> None:
    result = check(tmp_path, *SHORT, "--html", "/dev/full")
    assert result.code == 3
    assert "healthy" in result.out
    assert "/dev/full" in result.err
    assert result.report is not None
