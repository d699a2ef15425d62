"""`ddpdoctor run` on several hosts: one verdict on the head, whichever host the failure was on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .harness import Hosts
from .running import ENDLESS, Jobs, analyze, line_of

pytestmark = pytest.mark.root


@pytest.mark.parametrize("rendezvous", [pytest.param("static", marks=pytest.mark.long), "c10d"])
def test_failing_rank_of_the_second_host_is_named_by_host_rank_and_line(
    tmp_path: Path, rendezvous: str
) -> None:
    nproc = 2 if rendezvous == "static" else 1
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts, nproc=nproc, rendezvous=rendezvous)
        failing = 2 * nproc - 1
        head, other = jobs.finish(jobs.start(env={"FAILING": str(failing)}))
        analyzed = analyze(jobs, other.directory, head.directory)
    assert head.result.returncode == other.result.returncode == 1, head.result.describe()
    assert head.report is not None
    for first in (head.first, analyzed["findings"][0]):
        assert (first["code"], first["ranks"], first["nodes"]) == ("ERR001", [failing], ["node-b"])
        place = first["where"][0]
        assert place["file"].endswith("train.py")
        assert (place["line"], place["role"], place["host"]) == (line_of("FAULT"), "culprit", "node-b")
        assert set(first["victims"]) <= set(range(2 * nproc)) - {failing}
        assert "on node-b failed first" in first["message"]
    for report in (head.report, analyzed):
        nodes = {node["host"]: node["ranks"] for node in report["world"]["nodes"]}
        assert nodes == {"node-a": list(range(nproc)), "node-b": list(range(nproc, 2 * nproc))}
        assert report["world"]["size"] == 2 * nproc
        found = [each["rank"] for each in report["evidence"]["exceptions"] if each["type"] == "KeyError"]
        assert found == [failing]
    assert {each["state"] for each in head.report["evidence"]["members"]} == {"told"}
    assert head.member(1)["clock_error_s"] < 5
    assert (
        abs(head.member(1)["clock_offset_s"]) <= head.member(1)["clock_error_s"]
    )  # it is one machine's clock


@pytest.mark.long
def test_other_hosts_say_what_they_saw_and_where_the_head_is(tmp_path: Path) -> None:
    with Hosts(3) as hosts:
        jobs = Jobs(tmp_path, hosts)
        head, second, third = jobs.finish(jobs.start(env={"FAILING": "1"}))
    assert (head.first["code"], head.first["ranks"], head.first["nodes"]) == ("ERR001", [1], ["node-b"])
    assert (second.first["code"], second.first["ranks"]) == ("ERR001", [1])
    assert third.report is not None
    assert not [each for each in third.report["findings"] if each["severity"] == "error"]
    for each in (second, third):
        told = f"the report for all nodes is on node-a: {head.directory}/report.html"
        assert told in each.result.stderr, each.result.describe()
    assert (head.directory / "report.html").exists()
    assert "the report for all nodes" not in head.result.stderr
    kept = sorted(path.name for path in (head.directory / "nodes").glob("*.json"))
    assert kept == ["1.json", "2.json"]
    for name in kept:
        assert (head.directory / "nodes" / name).stat().st_mode & 0o777 == 0o600
        assert "hunter2" not in (head.directory / "nodes" / name).read_text(encoding="utf-8")


@pytest.mark.long
def test_failing_rank_of_the_head_is_named_there_and_not_guessed_elsewhere(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        head, other = jobs.finish(jobs.start(env={"FAILING": "0"}))
    assert (head.first["code"], head.first["ranks"], head.first["nodes"]) == ("ERR001", [0], ["node-a"])
    assert head.first["victims"] == [1]
    assert other.report is not None
    assert other.report["verdict"]["code"] is None
    assert "the actions of rank 0 on node-a are not known here" in other.report["verdict"]["headline"]


@pytest.mark.parametrize("rendezvous", ["static", pytest.param("c10d", marks=pytest.mark.long)])
def test_healthy_job_is_healthy_on_all(tmp_path: Path, rendezvous: str) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts, rendezvous=rendezvous)
        head, other = jobs.finish(jobs.start())
    for each in (head, other):
        assert each.result.returncode == 0, each.result.describe()
        assert each.report is not None
        assert each.report["findings"] == []
    assert head.report is not None
    assert [node["host"] for node in head.report["world"]["nodes"]] == ["node-a", "node-b"]
    assert [each["state"] for each in head.report["evidence"]["members"]] == ["told", "told"]


@pytest.mark.long
def test_host_without_ddpdoctor_is_not_waited_for_and_not_blamed(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        started = jobs.start("--nodes-wait", "600", env={"FAILING": "1"}, plain=["node-b"])
        head, _ = jobs.finish(started)  # the limit is far below ten minutes
    assert head.report is not None
    assert head.report["verdict"]["code"] is None
    assert head.member(1)["state"] == "unwatched"
    assert "what rank 1 did" in head.report["verdict"]["headline"]


@pytest.mark.long
def test_job_that_is_interrupted_on_one_host_is_said_on_the_other(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        started = jobs.start(env=ENDLESS)
        jobs.await_steps(started)
        started[1].send_signal(signal.SIGINT)
        head, other = jobs.finish(started)
    assert other.report is not None
    assert other.report["findings"] == []
    assert head.report is not None
    assert head.report["verdict"]["code"] is None
    assert "the job was stopped on node-b (SIGINT)" in head.report["verdict"]["headline"]
