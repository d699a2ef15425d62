"""What the connections of ranks that all wait show: a lost link, large packets that vanish, or that it is no network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Launch, RankSet
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.evidence.sockets import Connection, LinkState, NodeNetwork, RasAnswer
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.hangs.progress import judge_look
from tests.checks.standing import collective, judge, look, stand

STORE = 29500


def waiting(*ranks: int, world: int = 2) -> list[Stand]:
    hosts = "abc"
    return [
        replace(stand(rank, collective("all_reduce", 8, 88, world), still_s=30.0), host=f"node-{hosts[rank]}")
        for rank in ranks
    ]


def end(node: int, port: int) -> str:
    return f"10.0.0.{11 + node}:{port}"


def link(near: int, far: int, **more: Any) -> Connection:
    """The connection between the ranks of two nodes, as the first sees it."""
    given: dict[str, Any] = {
        "rank": near, "near": end(near, 40_000 + far), "far": end(far, 40_000 + near), "heard_s": 30.0,
        "acked_bytes": 1280, "acked_segments": 27, "segment_bytes": 1448,
    }  # fmt: skip
    return Connection(**{**given, **more})


def beat(node: int, head: int = 0, **more: Any) -> Connection:
    """The connection of an agent with the store."""
    given: dict[str, Any] = {
        "rank": None, "near": end(node, 50_000), "far": end(head, STORE), "moved": True, "heard_s": 0.4,
    }  # fmt: skip
    return Connection(**{**given, **more})


def hears(node: int, **more: Any) -> Connection:
    """The same as the head's agent sees it."""
    return beat(0, **{"near": end(0, STORE), "far": end(node, 50_000), **more})


STUCK: dict[str, Any] = {"unacknowledged": 44_888, "repeats": 5}
SMALL: dict[str, Any] = {"unacknowledged": 48, "repeats": 5}


def network(node: int, *connections: Connection, **more: Any) -> NodeNetwork:
    eth = LinkState("eth0", (f"10.0.0.{11 + node}",), True, True, 1500)
    made = NodeNetwork(node, f"node-{'abc'[node]}", connections, (eth,), "sock_diag")
    return replace(made, **more)


def find(
    *networks: NodeNetwork, ranks: tuple[int, ...] = (0, 1), world: int = 2, **more: Any
) -> Finding | None:
    more.setdefault("joined", len(networks) > 1)
    return judge(
        waiting(*ranks, world=world), still=30.0, stage="suspected", world=world, network=networks, **more
    )


def test_large_packets_that_vanish_while_small_ones_pass_are_named_with_the_pair() -> None:
    found = find(network(0, link(0, 1, **STUCK), hears(1)), network(1, link(1, 0, **STUCK), beat(1)))
    assert found is not None
    assert (found.code, found.confidence, found.ranks) == ("NET014", "high", RankSet())
    assert found.pairs == (("node-a", "node-b"),)
    assert found.victims == RankSet([0, 1])
    assert "rank 0 on node-a has sent the same 43.8 KiB to node-b 6 times" in found.message
    assert "no rank is the root cause" in found.message
    assert found.details["mtu"] == {"node-a": 1500, "node-b": 1500}
    assert (found.details["bytes_passed"], found.details["bytes_failed"]) == (48, 1448)


def test_one_side_alone_names_them_too_by_address_or_by_what_is_known_of_the_job() -> None:
    alone = (network(1, link(1, 0, **STUCK), beat(1)),)
    found = find(*alone, ranks=(1,))
    assert found is not None
    assert (found.code, found.pairs, found.nodes) == ("NET014", (("10.0.0.11", "node-b"),), ("node-b",))
    seen = look(waiting(1), still=30.0, stage="suspected", world=2, network=alone)
    members = (JobNode(0, "node-a"), JobNode(1, "node-b", own=True))
    found = judge_look(Evidence(launch=Launch(command="run"), standstills=(seen,), members=members))
    assert found is not None
    assert found.pairs == (("node-a", "node-b"),)
    more = judge_look(
        Evidence(launch=Launch(command="run"), standstills=(seen,), members=(*members, JobNode(2, "node-c")))
    )
    assert more is not None
    assert more.pairs == (("10.0.0.11", "node-b"),)  # which of the two others it is nobody knows


def test_full_packets_that_never_passed_are_lost_where_both_hosts_reach_a_third() -> None:
    """No sign of life goes between the two, but the look of each has come to the head."""
    nodes = (
        network(0, link(0, 1), link(0, 2)),
        network(1, link(1, 2, **STUCK), beat(1)),
        network(2, link(2, 1), beat(2)),
    )
    found = find(*nodes, ranks=(0, 1, 2), world=3)
    assert found is not None
    assert (found.code, found.confidence, found.pairs) == ("NET014", "medium", (("node-b", "node-c"),))
    passed = link(1, 2, **STUCK, acked_bytes=40_000_000, acked_segments=28_000)
    found = find(nodes[0], network(1, passed, beat(1)), nodes[2], ranks=(0, 1, 2), world=3)
    assert found is not None
    assert (found.code, found.confidence) == ("NET011", "high")
    assert "The processes on both are still running" in found.message


def test_link_over_which_nothing_passes_is_lost() -> None:
    found = find(network(0, link(0, 1, **SMALL)), ranks=(0,))
    assert found is not None
    assert (found.code, found.confidence, found.nodes) == ("NET011", "medium", ("node-a",))
    assert "No data has passed for 30 s, since" in found.message
    assert "without power" in found.message


@pytest.mark.parametrize(
    ("up", "carrier", "words"), [(True, False, "lost its carrier"), (False, None, "switched off")]
)
def test_interface_that_is_down_is_named_with_its_host(up: bool, carrier: bool | None, words: str) -> None:
    eth = LinkState("eth0", ("10.0.0.12",), up, carrier, 1500, downs=1)
    unused = LinkState("eth1", ("10.1.0.12",), False, False, 1500)
    found = find(network(1, link(1, 0), interfaces=(eth, unused)), ranks=(1,))
    assert found is not None
    assert (found.code, found.confidence, found.nodes) == ("NET011", "high", ("node-b",))
    assert f"the interface eth0 on node-b {('has ' + words) if up else ('is ' + words)}" in found.message
    assert found.details["interfaces"] == [["node-b", "eth0"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"repeats": 1},
        {"unacknowledged": 0},
        {"moved": True},
        {"heard_s": 2.0, "repeats": 3},
        {"state": "time_wait"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_network_is_not_blamed_for_less(changes: dict[str, Any]) -> None:
    found = find(network(0, link(0, 1, **{**STUCK, **changes}), hears(1)), network(1, link(1, 0), beat(1)))
    assert found is not None
    assert found.code == "COL005"


def test_service_outside_of_the_job_is_not_its_network() -> None:
    """A rank uploads something, and a firewall swallows it."""
    upload = replace(link(0, 1, **STUCK), far="52.216.0.1:443")
    found = find(network(0, link(0, 1), hears(1), upload), network(1, link(1, 0), beat(1)))
    assert found is not None
    assert found.code == "COL005"
    assert find(network(0, upload), ranks=(0,)) is None


def test_without_times_of_the_kernel_the_network_is_not_blamed() -> None:
    blind = network(0, link(0, 1, **STUCK, heard_s=None), note="no netlink", source="proc")
    assert texts(find(blind, network(1, link(1, 0, heard_s=None)))) == [
        "rank 0 has 43.8 KiB for rank 1 that are unacknowledged, retransmitted 5 times",
        "node-a: no netlink",
    ]


def test_small_data_that_is_stuck_while_others_pass_is_no_question_of_size() -> None:
    found = find(network(0, link(0, 1, **SMALL), hears(1)), network(1, link(1, 0), beat(1)))
    assert found is not None
    assert found.code == "COL005"


def test_between_two_limits_nothing_is_said_of_the_network() -> None:
    """Too old for a sign of life, and too young for silence."""
    late = (hears(1, heard_s=4.5), beat(1, heard_s=4.5))
    found = find(network(0, link(0, 1, **STUCK), late[0]), network(1, link(1, 0), late[1]))
    assert found is not None
    assert found.code == "COL005"


def test_a_rank_outside_of_every_call_is_what_is_told() -> None:
    stands = waiting(0, 1)
    stands[1] = replace(stands[1], call=None, state="T")
    networks = (network(0, link(0, 1, **STUCK)), network(1, link(1, 0), beat(1)))
    found = judge(stands, still=30.0, stage="suspected", world=2, network=networks, joined=True)
    assert found is not None
    assert found.code == "COL009"


def texts(found: Finding | None) -> list[str]:
    assert found is not None
    assert found.code == "COL005"
    return [each.text for each in found.evidence if each.kind == "socket"]


def test_symmetric_standstill_tells_what_the_sockets_show() -> None:
    idle = (network(0, link(0, 1)), network(1, link(1, 0)))
    assert texts(find(*idle)) == [
        "nothing is in flight on the 2 connections between ranks: the library or a rank is blocked, not the network"
    ]
    full = (network(0, link(0, 1, unacknowledged=2048)), network(1, link(1, 0, unread=4096)))
    told = texts(find(*full))
    assert told == [
        "rank 0 has 2 KiB for rank 1 that are unacknowledged",
        "rank 1 has 4 KiB of rank 0 that it does not read",
    ]
    assert "no TCP connections between the ranks" in texts(find(network(0), network(1)))[0]
    blind = NodeNetwork(0, "node-a", note="Operation not permitted")
    assert texts(find(blind)) == ["node-a: Operation not permitted"]
    assert texts(find()) == []


def test_ranks_of_one_host_are_told_apart_by_the_loopback_of_their_host() -> None:
    near = Connection(0, "127.0.0.1:40000", "127.0.0.1:40001", unread=700)
    far = Connection(1, "127.0.0.1:40001", "127.0.0.1:40000")
    assert texts(find(network(0, near, far))) == ["rank 0 has 700 B of rank 1 that it does not read"]


def test_transfer_that_goes_on_is_slow_and_not_still() -> None:
    moving = link(0, 1, moved=True, passed_bytes=2_000_000, unacknowledged=60_000)
    assert find(network(0, moving), network(1, link(1, 0))) is None
    assert find(network(0, replace(moving, passed_bytes=60)), network(1, link(1, 0))) is not None


def test_answer_of_nccl_stands_beside_the_calls() -> None:
    answer = RasAnswer("localhost:28028", 0, "node-a", ("INCOMPLETE", "Missing 1 process"), "ras/0001.txt")
    silent = RasAnswer("localhost:28028", 1, "node-b", note="nothing is listening")
    found = find(ras=(answer, silent))
    assert found is not None
    assert [each.text for each in found.evidence if each.kind == "ras"] == [
        "NCCL's RAS service at localhost:28028 on node-a: INCOMPLETE",
        "NCCL's RAS service at localhost:28028 on node-a: Missing 1 process",
        "NCCL's RAS service at localhost:28028 on node-b: nothing is listening",
    ]
