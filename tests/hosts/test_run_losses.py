"""`ddpdoctor run` where a host dies, or its cable is pulled, while the job runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Hosts
from .running import ENDLESS, Jobs, Ran, analyze, line_of

pytestmark = pytest.mark.root


@pytest.mark.parametrize("rendezvous", [pytest.param("static", marks=pytest.mark.long), "c10d"])
def test_host_whose_processes_are_all_killed_is_named(tmp_path: Path, rendezvous: str) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts, rendezvous=rendezvous)
        started = jobs.start(env=ENDLESS)
        jobs.await_steps(started)
        hosts[1].kill_everything()
        head, other = jobs.finish(started)
        analyzed = analyze(jobs, head.directory, other.directory)
    assert other.report is None
    first = head.first
    assert (first["code"], first["ranks"], first["nodes"]) == ("NET015", [1], ["node-b"])
    assert (first["details"]["state"], first["details"]["group_rank"]) == ("closed", 1)
    assert first["details"]["last_sign_wall_ns"] > 0
    assert (first["confidence"], first["victims"]) == ("high", [0])
    assert [place["line"] for place in first["where"] if place["role"] == "victim"] == [line_of("WAITING")]
    assert head.report is not None
    assert [node["host"] for node in head.report["world"]["nodes"]] == ["node-a", "node-b"]
    again = analyzed["findings"][0]  # with what its processes had written until then
    assert (again["code"], again["ranks"], again["nodes"]) == ("NET015", [1], ["node-b"])


@pytest.mark.long
def test_head_that_is_killed_is_not_guessed_from_elsewhere_but_told_by_its_files(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        started = jobs.start(env=ENDLESS)
        jobs.await_steps(started)
        hosts[0].kill_everything()
        head, other = jobs.finish(started)
        analyzed = analyze(jobs, other.directory, head.directory)
    assert other.report is not None
    assert other.report["verdict"]["code"] is None
    assert other.member(0)["state"] == "left"
    assert "where the rendezvous was already gone" in other.report["verdict"]["headline"]
    assert "node-a could not be determined what was seen here" in other.result.stderr
    first = analyzed["findings"][0]
    assert (first["code"], first["ranks"], first["nodes"]) == ("NET015", [0], ["node-a"])


@pytest.mark.long
def test_host_whose_link_is_down_is_named_from_both_ends(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        # The ranks give up after 20 s, by which time the silence says enough; nothing more comes of waiting longer.
        started = jobs.start("--nodes-wait", "3", env={**ENDLESS, "LIMIT": "20"})
        jobs.await_steps(started)
        hosts[1].link_down()
        head, other = jobs.finish(started)
        analyzed = analyze(jobs, head.directory, other.directory)
    require_silent(head)
    first = other.first
    assert (first["code"], first["ranks"], first["nodes"]) == ("NET011", [], ["node-b"])
    assert "eth0 on node-b has lost its carrier" in first["message"]
    lost = [each for each in other.report["findings"] if each["code"] == "NET015"] if other.report else []
    assert [(each["details"]["state"], each["role"]) for each in lost] == [("cut", "consequence")]
    assert analyzed["findings"][0]["code"] == "NET011", analyzed["findings"]
    assert analyzed["findings"][0]["nodes"] == ["node-b"]


@pytest.mark.long
def test_host_whose_link_is_down_is_named_under_c10d(tmp_path: Path) -> None:
    """By the head: on the other host torch's own agent waits for the rendezvous for minutes."""
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts, rendezvous="c10d")
        started = jobs.start("--nodes-wait", "3", env={**ENDLESS, "LIMIT": "20"})
        jobs.await_steps(started)
        hosts[1].link_down()
        (head,) = jobs.finish(started[:1])
    require_silent(head)


def require_silent(head: Ran) -> None:
    """Assert that the head names the link first, and the second host as one that said nothing any more after it."""
    first = head.first
    assert (first["code"], first["ranks"], first["pairs"]) == ("NET011", [], [["node-a", "node-b"]])
    assert first["confidence"] == "medium"
    assert "the link is cut, or that host is without power" in first["message"]
    assert head.report is not None
    (lost,) = [each for each in head.report["findings"] if each["code"] == "NET015"]
    assert (lost["role"], lost["nodes"], lost["details"]["state"]) == ("consequence", ["node-b"], "silent")
    assert lost["details"]["silent_s"] > 8
