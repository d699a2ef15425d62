"""What the nodes tell each other during and after the world: that one ended it, and what each has seen."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from ddpdoctor.evidence import Evidence, NodeFacts, StageRecord, decode, merge_evidence
from ddpdoctor.launch.meeting.store import DIAL_LIMIT_S, Store, open_store, receive_parcel, send_parcel
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.wire import EventWriter

WATCH_S = 0.25
"""How often the others are asked whether they ended the run."""
POLL_S = 0.1
GATHER_LIMIT_S = 15.0
"""How long the hosting node waits for the evidence of the others."""
SILENCE_S = 3.0
"""After this a party that has sent nothing is asked whether it is still there."""

Others = dict[int, dict[str, Any]]


class Exchange:
    """One party's connection to the others while the world runs and after it."""

    def __init__(
        self, plan: Plan, others: Others, writer: EventWriter, *, gently: bool = False, listens: bool = False
    ) -> None:
        """Take over from the meeting.

        Args:
            plan: with this node's number.
            others: party -> what it said of itself, this one included.
            writer: events for the supervisor.
            gently: some path loses large packets.
            listens: another process has this party's place: only hear what the others saw.
        """
        self._plan, self._others, self._writer = plan, others, writer
        self._gently, self._listens = gently, listens

    def announce_cut(self, text: str) -> None:
        """Tell the others that this node ended the run, and why."""
        with contextlib.suppress(Exception):
            self._connect().compare_set("cut", "", f"{self._plan.party}|{socket.gethostname()}: {text}")

    def watch_others(self, done: threading.Event) -> None:
        """Write an event when another party ends the run; ends with ``done`` or the store."""
        with contextlib.suppress(Exception):
            store = self._connect()
            while not done.wait(WATCH_S):
                if store.check(["cut"]):
                    party, _, text = store.get("cut").decode().partition("|")
                    if int(party) != self._plan.party:
                        self._writer.write(
                            "peer-cut", text=f"{self._plan.party_kind} {party} ended the run ({text})"
                        )
                    return

    def publish(self, path: Path) -> None:
        """Share this party's evidence; the hosting party joins all and everyone gets the whole."""
        merged: str | None = None
        with contextlib.suppress(Exception):
            text = self._share(path.read_text())
            whole = path.with_name("merged.json")
            whole.write_text(text)
            merged = str(whole)
        self._writer.write("exchanged", path=merged)

    def _share(self, mine: str) -> str:
        """Return the evidence of all as JSON."""
        store, party = self._connect(), self._plan.party
        if party != 0 or self._listens:
            if not self._listens:
                send_parcel(store, f"evidence/{party}", mine, gently=self._gently)
            store.wait(["merged"], timedelta(seconds=GATHER_LIMIT_S * 2))
            whole = receive_parcel(store, "merged")
            if not self._listens:
                store.set(f"fetched/{party}", "1")
            return whole
        parts = {0: Evidence.from_dict(json.loads(mine)), **self._collect(store)}
        whole = json.dumps(join_evidence(parts, self._others).to_dict())
        send_parcel(store, "merged", whole, gently=self._gently)
        with contextlib.suppress(Exception):  # who does not fetch it has its own
            store.wait([f"fetched/{other}" for other in parts if other], timedelta(seconds=GATHER_LIMIT_S))
        return whole

    def _collect(self, store: Store) -> dict[int, Evidence]:
        """Wait for what the others saw; who is gone is not waited for."""
        begun = time.monotonic()
        waiting, parts = set(self._others) - {0}, {}
        asked = False
        while waiting and time.monotonic() - begun < GATHER_LIMIT_S:
            for party in sorted(waiting):
                if store.check([f"evidence/{party}"]):
                    parts[party] = Evidence.from_dict(json.loads(receive_parcel(store, f"evidence/{party}")))
            waiting -= set(parts)
            if waiting and not asked and time.monotonic() - begun > SILENCE_S:
                asked = True
                waiting -= {party for party in waiting if is_gone(self._others[party])}
            if waiting:
                time.sleep(POLL_S)
        return parts

    def _connect(self) -> PrefixStore:
        """Open a connection of its own: one that waits keeps all its other users waiting."""
        launch = self._plan.launch
        own = open_store(launch.master_addr or "127.0.0.1", launch.master_port or 0)
        return PrefixStore(f"ddpdoctor/{launch.rdzv_id}", own)


def is_gone(other: dict[str, Any]) -> bool:
    """Whether a party's machine answers that nobody listens any more where its agent did."""
    for port in other["ports"].values():
        try:
            socket.create_connection((str(other["address"]), int(port)), timeout=DIAL_LIMIT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False
    return False


def join_evidence(parts: dict[int, Evidence], others: Others) -> Evidence:
    """Join what the parties sent; one that sent nothing is named in the whole.

    Args:
        parts: party -> what it saw.
        others: party -> what it said of itself when it came.
    """
    whole = merge_evidence([parts[party] for party in sorted(parts)])
    silent = sorted(set(others) - set(parts))
    records = [
        StageRecord(int(others[party]["node"]), "bandwidth", "unreached", "this node sent no evidence")
        for party in silent
    ]
    nodes: dict[int, NodeFacts] = {}
    for party, part in sorted(parts.items()):
        # What a node tells of itself at the end is more than what it told the others at the beginning.
        if others[party]["leads"]:
            nodes.update(
                {facts.node: facts for facts in part.nodes if facts.node == int(others[party]["node"])}
            )
    for party in silent:
        if others[party]["facts"] is not None:
            nodes.setdefault(int(others[party]["node"]), decode(NodeFacts, others[party]["facts"]))
    return dataclasses.replace(
        whole,
        nodes=tuple(nodes[number] for number in sorted(nodes)),
        stages=(*whole.stages, *dict.fromkeys(records)),
    )
