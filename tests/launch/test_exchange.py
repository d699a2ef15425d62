"""What nodes tell each other: joining what was seen, and who is not there any more."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Launch, NodeFacts, RankFacts, encode
from ddpdoctor.launch.meeting.exchange import Exchange, is_gone, join_evidence
from ddpdoctor.launch.meeting.store import serve_store
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.wire import EventReader, EventWriter


def introduce(node: int, **changes: Any) -> dict[str, Any]:
    """Return what a party says of itself."""
    facts = encode(NodeFacts(node, f"host-{node}"))
    return {"node": node, "leads": True, "facts": facts, "address": "127.0.0.1", "ports": {}, **changes}


def see(node: int, *others: int) -> Evidence:
    """Return what a node saw: itself at the end, others at the beginning."""
    own = NodeFacts(node, f"host-{node}", clock_offset_s=0.5)
    return Evidence(
        nodes=(own, *(NodeFacts(other, f"host-{other}") for other in others)),
        ranks=(RankFacts(node, 0, node, f"host-{node}", 100 + node, 2),),
    )


def test_what_a_node_says_of_itself_at_the_end_counts() -> None:
    whole = join_evidence({0: see(0, 1), 1: see(1, 0)}, {0: introduce(0), 1: introduce(1)})
    assert [(facts.node, facts.clock_offset_s) for facts in whole.nodes] == [(0, 0.5), (1, 0.5)]
    assert [facts.rank for facts in whole.ranks] == [0, 1]
    assert whole.stages == ()


def test_silent_node_is_named_and_what_it_said_at_the_beginning_is_kept() -> None:
    whole = join_evidence({0: see(0)}, {0: introduce(0), 1: introduce(1)})
    assert [facts.host for facts in whole.nodes] == ["host-0", "host-1"]
    assert [(record.node, record.status) for record in whole.stages] == [(1, "unreached")]
    assert whole.stages[0].reason == "this node sent no evidence"


def test_silent_ranks_of_one_node_are_named_once() -> None:
    others = {0: introduce(0), 1: introduce(1), 2: introduce(1, leads=False, facts=None)}
    whole = join_evidence({0: see(0)}, others)
    assert [record.node for record in whole.stages] == [1]


def test_who_answers_or_cannot_be_asked_is_not_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_gone(introduce(1, ports={"ephemeral": port}))
        assert not is_gone(introduce(1))
    assert is_gone(introduce(1, ports={"ephemeral": port}))


class Parties:
    """Parties of one check, each with an exchange, around one store."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.store = serve_store("127.0.0.1", 0)
        launch = Launch(nnodes=count, master_addr="127.0.0.1", master_port=self.store.port, rdzv_id="x")
        self.plan = Plan(launch, str(folder), parties=count)
        self.others = {party: introduce(party) for party in range(count)}

    def exchange(self, party: int, **settings: bool) -> tuple[Exchange, EventReader]:
        path = self.folder / f"events-{party}-{len(settings)}"
        plan = replace(self.plan, party=party, node=party)
        return Exchange(plan, self.others, EventWriter(path), **settings), EventReader(path)

    def publish(self, exchange: Exchange, evidence: Evidence, name: str) -> threading.Thread:
        path = self.folder / name / "node.json"
        path.parent.mkdir()
        path.write_text(json.dumps(evidence.to_dict()))
        thread = threading.Thread(target=exchange.publish, args=(path,))
        thread.start()
        return thread


def read_merged(reader: EventReader) -> Evidence:
    """Return what the supervisor will read."""
    (event,) = reader.read()
    assert event["event"] == "exchanged"
    return Evidence.from_dict(json.loads(Path(event["path"]).read_text()))


@pytest.mark.parametrize("gently", [False, True])
def test_everyone_gets_the_whole(tmp_path: Path, gently: bool) -> None:
    parties = Parties(tmp_path, 2)
    pairs = [parties.exchange(party, gently=gently) for party in range(2)]
    threads = [parties.publish(each, see(n, 1 - n), f"p{n}") for n, (each, _) in enumerate(pairs)]
    for thread in threads:
        thread.join(60)
    wholes = [read_merged(reader) for _, reader in pairs]
    assert wholes[0] == wholes[1]
    assert [facts.rank for facts in wholes[0].ranks] == [0, 1]


def test_who_came_second_hears_the_whole_and_adds_nothing(tmp_path: Path) -> None:
    parties = Parties(tmp_path, 2)
    pairs = [parties.exchange(0), parties.exchange(1), parties.exchange(1, listens=True)]
    stranger = replace(see(1), ranks=(RankFacts(1, 0, 1, "stranger", 7, 2),))
    threads = [
        parties.publish(each, evidence, f"p{n}")
        for n, ((each, _), evidence) in enumerate(zip(pairs, [see(0), see(1), stranger], strict=True))
    ]
    for thread in threads:
        thread.join(60)
    for _, reader in pairs:
        assert [facts.host for facts in read_merged(reader).ranks] == ["host-0", "host-1"]


def test_dead_party_is_not_waited_for(tmp_path: Path) -> None:
    parties = Parties(tmp_path, 2)
    with socket.create_server(("127.0.0.1", 0)) as was_there:
        parties.others[1]["ports"] = {"ephemeral": was_there.getsockname()[1]}
    exchange, reader = parties.exchange(0)
    thread = parties.publish(exchange, see(0), "p0")
    thread.join(60)
    whole = read_merged(reader)
    assert [record.node for record in whole.stages] == [1]


def test_without_the_store_nothing_is_exchanged(tmp_path: Path) -> None:
    parties = Parties(tmp_path, 2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    parties.plan = replace(parties.plan, launch=replace(parties.plan.launch, master_port=port))
    exchange, reader = parties.exchange(1)
    parties.publish(exchange, see(1), "p1").join(60)
    assert [(event["event"], event["path"]) for event in reader.read()] == [("exchanged", None)]


def test_end_of_a_run_is_told_to_the_others_only(tmp_path: Path) -> None:
    parties = Parties(tmp_path, 2)
    (first, of_first), (second, of_second) = parties.exchange(0), parties.exchange(1)
    first.announce_cut("ddp: rank 0 raised an error")
    for each in (first, second):
        each.watch_others(threading.Event())
    assert of_first.read() == []
    (event,) = of_second.read()
    assert event["event"] == "peer-cut"
    assert event["text"].startswith("node 0 ended the run (")
    assert "rank 0 raised an error" in event["text"]
