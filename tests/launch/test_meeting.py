"""Nodes meet at a store: how they are numbered, and what each of them writes when it does not come about."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Launch, NodeFacts, encode
from ddpdoctor.gather.network.ports import free_port
from ddpdoctor.launch.meeting.party import Meeting
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.wire import EventReader, EventWriter


class Party:
    """One node of a meeting on this machine."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        path = folder / f"events-{id(self)}"
        facts = encode(NodeFacts(plan.node, socket.gethostname(), advertised="127.0.0.1"))
        self.meeting = Meeting(plan, facts, EventWriter(path))
        self._reader = EventReader(path)
        self.together: bool | None = None
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        self.together = self.meeting.gather()

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the end of the meeting and return its events."""
        self._thread.join(90)
        self.meeting.close()
        return self._reader.read()


def plan_static(port: int, node: int, nodes: int, nproc: int = 1, **changes: Any) -> Plan:
    launch = Launch(
        nnodes=nodes,
        nproc=nproc,
        world_size=nodes * nproc,
        node_rank=node,
        master_addr="127.0.0.1",
        master_port=port,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_id="x",
    )
    plan = Plan(launch, "", node=node, party=node, parties=nodes, first_rank=node * nproc, join_timeout=60)
    return replace(plan, **changes)


def plan_c10d(port: int, nodes: int, name: str) -> Plan:
    plan = plan_static(port, 0, nodes)
    launch = replace(plan.launch, node_rank=None, rdzv_backend="c10d", local_addr=name)
    return replace(plan, launch=launch, placed=False)


def rows(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if event["event"] == "row" and event["kind"] == kind]


def test_nodes_with_different_numbers_of_ranks_are_counted_up(tmp_path: Path) -> None:
    port = free_port()
    parties = [Party(tmp_path, plan_static(port, node, 2, nproc=1 + 2 * node)) for node in range(2)]
    events = [party.finish() for party in parties]
    assert [party.together for party in parties] == [True, True], events
    plans = [party.meeting.plan for party in parties]
    assert [(plan.first_rank, plan.launch.world_size) for plan in plans] == [(0, 4), (1, 4)]
    assert [rows(each, "rendezvous")[0]["joined_ranks"] for each in events] == ["0-3", "0-3"]
    assert all(link["ok"] for each in events for link in rows(each, "links"))


@pytest.fixture
def one_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of two parties believe that it hosts, as on two machines; on one both would."""
    answers = iter([True, False])
    monkeypatch.setattr("ddpdoctor.launch.meeting.entry.matches_this_machine", lambda host: next(answers))


@pytest.mark.usefixtures("one_hosts")
def test_c10d_numbers_nodes_by_name_as_torch_does(tmp_path: Path) -> None:
    port = free_port()
    last = Party(tmp_path, plan_c10d(port, 2, "127.0.0.9"))
    first = Party(tmp_path, plan_c10d(port, 2, "127.0.0.1"))
    for party in (first, last):
        party.finish()
    assert (first.meeting.plan.node, last.meeting.plan.node) == (0, 1)
    assert {first.meeting.plan.party, last.meeting.plan.party} == {0, 1}
    assert first.meeting.plan.placed
    assert last.meeting.plan.placed


@pytest.mark.usefixtures("one_hosts")
def test_name_that_c10d_publishes_and_nobody_knows_rules_it_out(tmp_path: Path) -> None:
    port = free_port()
    parties = [Party(tmp_path, plan_c10d(port, 2, name)) for name in ("127.0.0.1", "0.no-such-host.invalid")]
    events = [party.finish() for party in parties]
    assert [party.together for party in parties] == [False, False]
    for each in events:
        (blocked,) = [event["reason"] for event in each if event["event"] == "blocked"]
        assert "cannot resolve 0.no-such-host.invalid" in blocked


def test_missing_node_is_named(tmp_path: Path) -> None:
    port = free_port()
    parties = [Party(tmp_path, plan_static(port, node, 3, join_timeout=3)) for node in (0, 2)]
    events = [party.finish() for party in parties]
    for each in events:
        (row,) = rows(each, "rendezvous")
        assert row["joined_nodes"] == [0, 2]
        assert row["joined_ranks"] == "0,2"
        assert "node 1 of 3 did not join" in row["error"]
        assert len(rows(each, "nodes")) == 1  # what the other said of itself


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_port_of_something_else_is_told(tmp_path: Path, backend: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        plan = plan_static(port, 1, 2, join_timeout=3)
        if backend == "c10d":
            plan = replace(plan_c10d(port, 2, "127.0.0.1"), join_timeout=3)
        party = Party(tmp_path, plan)
        events = party.finish()
    assert party.together is False
    (row,) = rows(events, "ports")
    assert row["status"] == ("silent" if backend == "static" else "taken")
    assert party.meeting.exchange() is None


def test_port_that_answers_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.launch.meeting.entry.CONNECT_LIMIT_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greet, args=(server,), daemon=True).start()
        party = Party(tmp_path, plan_static(server.getsockname()[1], 1, 2, join_timeout=50))
        events = party.finish()
    assert rows(events, "ports")[0]["status"] == "foreign"


def greet(server: socket.socket) -> None:
    """Answer each connection with what no store of torch says, and hang up."""
    with contextlib.suppress(OSError):
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"220 mail.example ESMTP\r\n")


def test_limit_of_the_command_ends_the_wait_and_is_named(tmp_path: Path) -> None:
    """Whatever limit cuts, those who did not come are named; the limit is the one that cut."""
    port = free_port()
    until = time.monotonic() + 3
    changes: dict[str, Any] = {"join_timeout": 60.0, "timeout": 4.0, "until": until}
    parties = [Party(tmp_path, plan_static(port, node, 3, **changes)) for node in (0, 2)]
    for each in [party.finish() for party in parties]:
        (row,) = rows(each, "rendezvous")
        assert row["error"].startswith("node 1 of 3 did not join within ")
        assert row["error"].endswith("s (--timeout 4)")
        assert row["waited_s"] < 10
        assert row["limit_s"] < 4


def plan_rank(port: int, rank: int, ranks: int, **changes: Any) -> Plan:
    """Return the plan of a rank that was started by hand: no variable tells its node."""
    plan = plan_static(port, 0, 1)
    launch = replace(plan.launch, launcher="env", world_size=ranks, rdzv_backend="env", rdzv_id="ddpdoctor")
    place = {"party": rank, "parties": ranks, "first_rank": rank, "external": True, "told": False}
    return replace(plan, launch=launch, local_world_size=1, **{**place, **changes})


def test_ranks_that_nobody_numbered_find_out_who_shares_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = itertools.cycle(["a", "b", "a"])
    lock, drawn = threading.Lock(), dict[int, str]()

    def identify() -> str:
        with lock:
            return drawn.setdefault(threading.get_ident(), next(names))

    monkeypatch.setattr("ddpdoctor.launch.meeting.party.identify_machine", identify)
    port = free_port()
    parties = [Party(tmp_path, plan_rank(port, rank, 3)) for rank in range(3)]
    for party in parties:
        party.finish()
    plans = [party.meeting.plan for party in parties]
    assert [party.together for party in parties] == [True] * 3
    assert {plan.launch.nnodes for plan in plans} == {2}
    assert sorted((plan.node, plan.local_rank, plan.local_world_size) for plan in plans) in (
        [(0, 0, 2), (0, 1, 2), (1, 0, 1)],
        [(0, 0, 1), (1, 0, 2), (1, 1, 2)],
    )
    assert sum(plan.leads for plan in plans) == 2


def test_equal_names_and_process_ids_are_still_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers made from one image have one host name, and in each the command is process 1."""
    monkeypatch.setattr("ddpdoctor.launch.meeting.party.os.getpid", lambda: 1)
    port = free_port()
    parties = [Party(tmp_path, plan_static(port, node, 3, join_timeout=20)) for node in (0, 1, 1)]
    events = [party.finish() for party in parties]
    assert any(rows(each, "rendezvous")[0]["duplicates"] for each in events)


def test_port_at_which_nobody_listens_is_told(tmp_path: Path) -> None:
    party = Party(tmp_path, plan_static(free_port(), 1, 2, join_timeout=1))
    events = party.finish()
    assert party.together is False
    assert "Connection refused" in rows(events, "rendezvous")[0]["error"]
    assert [link["ok"] for link in rows(events, "links")] == [False]


def test_address_of_another_machine_cannot_be_hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.launch.meeting.store.STORE_TIMEOUT_S", 1.0)
    before = set(threading.enumerate())
    plan = plan_static(free_port(), 0, 2, join_timeout=1)
    elsewhere = replace(plan.launch, master_addr="192.0.2.1")  # of nobody (RFC 5737)
    party = Party(tmp_path, replace(plan, launch=elsewhere))
    events = party.finish()
    assert party.together is False
    assert "192.0.2.1 is not one of its addresses" in rows(events, "rendezvous")[0]["error"]
    # A thread that is still in torch's code when the interpreter ends would abort it.
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
