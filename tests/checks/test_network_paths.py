"""Paths between nodes, and who came to the rendezvous."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Absent,
    Evidence,
    HostMatch,
    Interface,
    Link,
    RankExit,
    RankSet,
    Rendezvous,
    StageRecord,
)
from ddpdoctor.testing import assert_finds, assert_passes, assert_status, judge_one, make_node, make_world
from ddpdoctor_checks.network import (
    find_large_packets_lost,
    find_peer_unreachable,
    find_ports_blocked,
    find_ranks_missing,
)

TIMEOUT, REFUSED, NO_ROUTE = "timed out", "Connection refused", "No route to host"


def links_between(
    nodes: int,
    ephemeral: Iterable[tuple[int, int]] = (),
    rendezvous: Iterable[tuple[int, int]] = (),
    error: str = TIMEOUT,
) -> tuple[Link, ...]:
    """Return all links of a world as `check` tries them; the named pairs fail."""
    found = []
    for a in range(nodes):
        for b in range(nodes):
            if a == b:
                continue
            tries = [("ephemeral", 40000 + b, (a, b) in set(ephemeral))]
            tries += [("rendezvous", 29500, (a, b) in set(rendezvous))] if b == 0 else []
            for kind, port, failed in tries:
                link = Link(a, b, kind, not failed, f"10.0.0.{b + 1}", port, error=error if failed else None)
                found.append(link)
    return tuple(found)


def linked(nodes: int, *args: Any, **changes: Any) -> Evidence:
    return make_world(nodes, 2, links=links_between(nodes, *args), **changes)


# NET005


def test_firewall_that_opens_the_rendezvous_port_only() -> None:
    every = [(a, b) for a in range(3) for b in range(3) if a != b]
    found = assert_finds(find_ports_blocked, linked(3, every), code="NET005", severity="error")
    assert "TCP ports 32768-60999 are blocked" in found.message
    assert "6 of 6 directed pairs" in found.message
    assert len(found.pairs) == 6
    assert found.details["range"] == [32768, 60999]
    command = found.fix[0].command or ""
    assert "--dport 32768:60999 -j ACCEPT" in command
    assert "-s 10.0.0.1,10.0.0.2,10.0.0.3" in command
    assert_passes(find_peer_unreachable, linked(3, every))


@pytest.mark.parametrize("error", [TIMEOUT, REFUSED, NO_ROUTE])
def test_node_that_lets_nobody_in_is_at_fault(error: str) -> None:
    world = make_world(3, 2, links=links_between(3, [(0, 2), (1, 2)], (), error))
    found = assert_finds(find_ports_blocked, world)
    assert found.nodes == ("node-2",)
    assert found.ranks == RankSet([4, 5])
    assert found.pairs == (("node-0", "node-2"), ("node-1", "node-2"))
    assert_passes(find_peer_unreachable, world)


def test_blocked_pair_of_two_nodes_blames_both() -> None:
    found = assert_finds(find_ports_blocked, linked(2, [(1, 0)]))
    assert found.nodes == ("node-0", "node-1")


def test_range_is_what_the_target_uses() -> None:
    world = linked(2, [(0, 1)])
    node = make_node(1, ephemeral_ports=(20000, 30000))
    found = assert_finds(find_ports_blocked, replace(world, nodes=(world.nodes[0], node)))
    assert "TCP ports 20000-30000" in found.message


@pytest.mark.parametrize("function", [find_ports_blocked, find_peer_unreachable, find_large_packets_lost])
def test_paths_of_a_single_node_do_not_exist(function: Any) -> None:
    assert_status(function, make_world(), "skipped")
    assert_status(function, make_world(links=(), absent={"links": Absent("single node", False)}), "skipped")


@pytest.mark.parametrize("function", [find_ports_blocked, find_peer_unreachable, find_large_packets_lost])
def test_paths_that_nobody_tried_are_unknown(function: Any) -> None:
    assert_status(function, make_world(2, 2, links=()), "unknown")
    blind = make_world(2, 2, links=(), absent={"links": Absent("the rendezvous was not reached")})
    assert assert_status(function, blind, "unknown") == "the rendezvous was not reached"


def test_open_paths_pass() -> None:
    assert_passes(find_ports_blocked, linked(3))
    assert_passes(find_peer_unreachable, linked(3))
    assert_status(find_large_packets_lost, linked(3), "unknown")


def test_attempt_that_worked_later_counts() -> None:
    tries = (
        Link(1, 0, "rendezvous", False, error=REFUSED),
        Link(1, 0, "rendezvous", True),
        Link(1, 0, "ephemeral", True),
    )
    for order in (tries, tuple(reversed(tries))):
        world = make_world(2, 2, links=order)
        assert_passes(find_ports_blocked, world)
        assert_passes(find_peer_unreachable, world)


# NET013


def test_pair_without_any_connection_is_unreachable() -> None:
    broken = [(1, 2), (2, 1)]
    world = linked(3, broken)
    found = assert_finds(find_peer_unreachable, world, code="NET013", severity="error")
    assert found.pairs == (("node-1", "node-2"), ("node-2", "node-1"))
    assert found.nodes == ("node-1", "node-2")
    assert TIMEOUT in found.message
    assert found.fix[0].command == "ip route get 10.0.0.3; ping -c 3 10.0.0.3"
    assert_passes(find_ports_blocked, world)


def test_node_that_nobody_reaches_is_at_fault() -> None:
    broken = [(a, b) for a in range(3) for b in range(3) if a != b and 2 in (a, b)]
    world = make_world(3, 2, links=links_between(3, broken, [(2, 0)], NO_ROUTE))
    found = assert_finds(find_peer_unreachable, world)
    assert found.nodes == ("node-2",)
    assert found.ranks == RankSet([4, 5])
    assert NO_ROUTE in found.message
    assert_passes(find_ports_blocked, world)


def test_evidence_of_one_node_alone_tells_that_the_master_is_out_of_reach() -> None:
    world = make_world(2, 2, links=(Link(1, 0, "rendezvous", False, "10.0.0.1", 29500, error=NO_ROUTE),))
    found = assert_finds(find_peer_unreachable, replace(world, nodes=world.nodes[1:], ranks=()))
    assert found.message == f"No TCP connection can be opened from node-1 to node 0: {NO_ROUTE}."


def test_master_that_refuses_is_there_but_does_not_listen() -> None:
    link = Link(1, 0, "rendezvous", False, "10.0.0.1", 29500, error="[Errno 111] Connection refused")
    assert judge_one(find_peer_unreachable, make_world(2, 2, links=(link,)))[1] == []


# NET014


def with_large(passed: int | None, failed: int | None, ok: bool = False, small: bool = True) -> Evidence:
    links = [Link(a, b, "ephemeral", small) for a, b in ((0, 1), (1, 0))]
    links.append(Link(0, 1, "large", ok, "10.0.0.2", 4, bytes_passed=passed, bytes_failed=failed, mtu=1500))
    links.append(Link(1, 0, "large", True, bytes_passed=1 << 20, mtu=9000))
    return make_world(2, 2, links=tuple(links))


def test_black_hole_is_named_with_sizes_and_mtus() -> None:
    found = assert_finds(find_large_packets_lost, with_large(1024, 65536), code="NET014", severity="error")
    assert found.message == (
        "Large packets are dropped from node-0 to node-1: 1 KiB still passes, 64 KiB does not arrive (MTU: "
        "node-0 1500 and node-1 9000)."
    )
    assert found.pairs == (("node-0", "node-1"),)
    assert found.details["mtu"] == {"node-0": 1500, "node-1": 9000}
    assert found.fix[0].command == "ping -c 2 -M do -s 1472 10.0.0.2"
    assert "sudo ip link set dev eth0 mtu 1400" in [fix.command for fix in found.fix]


def test_black_hole_may_swallow_everything_after_the_handshake() -> None:
    assert "nothing but the handshake" in assert_finds(find_large_packets_lost, with_large(0, 1024)).message


def test_black_hole_proves_that_the_peer_is_reachable() -> None:
    world = with_large(1024, 65536)
    assert_passes(find_peer_unreachable, world)
    assert_passes(find_ports_blocked, world)


def test_large_message_over_a_broken_path_proves_nothing() -> None:
    world = with_large(None, 1024, small=False)
    assert judge_one(find_large_packets_lost, world)[1] == []


def test_smaller_mtu_that_both_ends_know_is_fine() -> None:
    world = with_large(1 << 20, None, ok=True)
    card = Interface("eth0", ("10.0.0.1",), mtu=1300)
    nodes = (make_node(0, interfaces=(card,)), make_node(1))
    assert_passes(find_large_packets_lost, replace(world, nodes=nodes))


# NET006


def view(node: int, joined: Iterable[int], nodes: int = 3, nproc: int = 4, **changes: Any) -> Rendezvous:
    came = tuple(joined)
    ranks = RankSet(rank for each in came for rank in range(each * nproc, (each + 1) * nproc))
    row = Rendezvous(node, "static", "node-0:29500", nodes, came, nodes * nproc, ranks, 60.0, 60.0)
    return replace(row, **changes)


def test_missing_node_is_named_with_its_ranks_and_its_command() -> None:
    world = make_world(3, 4, rendezvous=(view(0, (0, 2)), view(2, (0, 2))), ranks=())
    launch = replace(world.launch, rdzv_backend="static", rdzv_endpoint="node-0:29500")
    world = replace(world, launch=launch, nodes=(world.nodes[0], world.nodes[2]))
    found = assert_finds(find_ranks_missing, world, code="NET006", severity="error")
    assert found.message == (
        "8 of 12 ranks joined the rendezvous at node-0:29500 within 60 s: node 1 with ranks 4-7 never joined."
    )
    assert found.ranks == RankSet([4, 5, 6, 7])
    assert found.victims == RankSet([0, 1, 2, 3, 8, 9, 10, 11])
    assert found.nodes == ("node 1",)
    assert found.fix[0].command == (
        "ddpdoctor check --nnodes 3 --node-rank 1 --nproc 4 --master-addr node-0 --master-port 29500"
    )
    assert found.fix[-1].command == (
        "ddpdoctor check --nnodes 2 --node-rank 0 --nproc 4 --master-addr node-0 --master-port 29500"
    )


def test_missing_node_that_left_facts_is_named_by_host() -> None:
    world = make_world(3, 4, rendezvous=(view(0, (0, 2)),))
    world = replace(world, launch=replace(world.launch, rdzv_backend="static"))
    assert "node 1 (node-1) with ranks 4-7" in assert_finds(find_ranks_missing, world).message


def test_missing_node_of_a_dynamic_rendezvous_has_no_number_yet() -> None:
    world = make_world(3, 4, rendezvous=(view(0, (0, 1)),))
    found = assert_finds(find_ranks_missing, world)
    assert found.message == (
        "8 of 12 ranks joined the rendezvous at node-0:29500 within 60 s: "
        "only node-0 and node-1 joined, 1 node of 3 did not."
    )
    assert found.nodes == ()
    assert found.fix[0].text == "start it on the missing nodes too, with the same command"


@pytest.mark.parametrize(
    ("launcher", "start"),
    [
        ("torchrun", "torchrun --nnodes 3 --nproc-per-node 4 --rdzv-backend c10d"),
        ("srun", "MASTER_ADDR=node-0 MASTER_PORT=29500 srun --nodes 3 --ntasks 12 python -m ddpdoctor check"),
        ("mpirun", "mpirun -n 12 -x MASTER_ADDR=node-0 -x MASTER_PORT=29500 python -m ddpdoctor check"),
    ],
)
def test_command_is_the_launchers_own(launcher: str, start: str) -> None:
    world = make_world(3, 4, rendezvous=(view(0, (0, 2)),))
    world = replace(world, launch=replace(world.launch, launcher=launcher))
    command = assert_finds(find_ranks_missing, world).fix[0].command
    assert command is not None
    assert command.startswith(start)


def test_node_that_met_nobody_blames_nobody_for_certain() -> None:
    seen = view(1, (), error="node-0:29500: Connection refused")
    link = Link(1, 0, "rendezvous", False, "10.0.0.1", 29500, error="Connection refused")
    world = make_world(3, 4, rendezvous=(seen,), links=(link,))
    world = replace(world, launch=replace(world.launch, rdzv_backend="static"))
    found = assert_finds(find_ranks_missing, replace(world, nodes=world.nodes[1:2], ranks=()))
    assert found.ranks == RankSet([0, 1, 2, 3, 8, 9, 10, 11])
    assert found.nodes == ("node 0", "node 2")
    assert found.message == "node-1 saw none of the other 2 nodes at node-0:29500 within 60 s."
    assert found.confidence == "medium"
    assert any("Connection refused" in item.text for item in found.evidence if item.kind == "link")


def test_one_of_two_that_met_nobody_does_not_call_the_other_many() -> None:
    match = HostMatch(0, "head:29500", False, ("node-0", "10.0.0.1"))
    world = make_world(2, 4, rendezvous=(view(0, (), nodes=2),), host_matches=(match,), links=())
    found = assert_finds(find_ranks_missing, world)
    assert found.message == "node-0 did not see the other node at node-0:29500 within 60 s."
    assert any("does not recognize itself as head:29500" in item.text for item in found.evidence)


def test_wait_that_the_limit_of_the_command_ended_is_told_with_that_limit() -> None:
    """Whatever limit cuts, the missing are named; a short wait is weaker evidence than a long one."""
    cut: dict[str, Any] = {"waited_s": 7.9, "limit_s": 8.0, "limit_option": "--timeout"}
    world = make_world(3, 4, rendezvous=(view(0, (0, 2), **cut), view(2, (0, 2), **cut)), ranks=())
    world = replace(world, launch=replace(world.launch, rdzv_backend="static"), nodes=world.nodes[::2])
    found = assert_finds(find_ranks_missing, world)
    assert found.message == (
        "8 of 12 ranks joined the rendezvous at node-0:29500 within 8 s, when --timeout ended the wait: "
        "node 1 with ranks 4-7 had not joined."
    )
    assert found.confidence == "medium"


def make_by_hand(**changes: Any) -> Evidence:
    """Return the view of rank 2 of three that were started by hand: nobody knows how many nodes there are."""
    world = make_world(1, 1, ranks=())
    launch = replace(world.launch, launcher="env", rdzv_backend="env", world_size=3)
    row = Rendezvous(
        0, "env", "node-0:29500", 1, (0,), 3, RankSet([0, 2]), 60.0, 60.0, own_ranks=RankSet([2])
    )
    return replace(world, launch=launch, rendezvous=(replace(row, **changes),))


def test_missing_rank_that_is_started_by_hand_is_named_without_a_word_of_nodes() -> None:
    found = assert_finds(find_ranks_missing, make_by_hand())
    assert found.message == (
        "2 of 3 ranks joined the rendezvous at node-0:29500 within 60 s: rank 1 never joined."
    )
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0, 2]))
    assert [fix.command for fix in found.fix] == [
        "RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m ddpdoctor check"
    ]


def test_rank_by_hand_that_met_nobody_is_not_missing_itself() -> None:
    world = make_by_hand(joined_ranks=RankSet(), joined_nodes=(), error="node-0:29500: Connection refused")
    found = assert_finds(find_ranks_missing, world)
    assert (
        found.message == "rank 2 on node-0 saw no other rank within 60 s: node-0:29500: Connection refused."
    )
    assert found.ranks == RankSet([0, 1])


def test_most_complete_view_counts() -> None:
    world = make_world(3, 4, rendezvous=(view(1, (1,)), view(0, (0, 1, 2))))
    assert_passes(find_ranks_missing, world)


def test_ranks_missing_on_a_node_that_came() -> None:
    seen = view(0, (0, 1, 2), joined_ranks=RankSet([*range(7), *range(8, 12)]))
    world = make_world(3, 4, rendezvous=(seen,), exits=(RankExit(7, 70, "rendezvous", signal=9),))
    found = assert_finds(find_ranks_missing, world)
    assert "rank 7 never joined, although all nodes did" in found.message
    assert found.ranks == RankSet([7])
    assert any("exited with signal 9" in item.text for item in found.evidence)


def test_world_of_one_node_counts_the_ranks_that_reported() -> None:
    world = make_world(1, 4, rendezvous=())
    assert_passes(find_ranks_missing, world)
    stage = StageRecord(0, "rendezvous", "cut", duration_s=30.0, limit_s=30.0)
    found = assert_finds(find_ranks_missing, replace(world, ranks=world.ranks[:3], stages=(stage,)))
    assert found.message == (
        "3 of 4 ranks joined the rendezvous at 127.0.0.1:29500 within 30 s: "
        "rank 3 never joined, although their node did."
    )
    assert found.ranks == RankSet([3])


def test_rendezvous_that_nobody_recorded_is_unknown() -> None:
    assert_status(find_ranks_missing, make_world(2, 2, rendezvous=()), "unknown")
    assert_status(find_ranks_missing, make_world(1, 2, rendezvous=(), ranks=()), "unknown")
    blind = {"rendezvous": Absent("stage was not reached")}
    assert_status(find_ranks_missing, make_world(2, 2, rendezvous=(), absent=blind), "unknown")


def test_complete_rendezvous_passes() -> None:
    assert_passes(find_ranks_missing, make_world(3, 4))
