"""Where the nodes of one check meet before the world: torch's own TCPStore on the rendezvous port.

Every node says who it is, the paths between the nodes are tried, and one decision is made for all: launch or
not. What they tell each other later is `ddpdoctor.launch.meeting.exchange`. No port is used but the rendezvous port
and, for the paths, ephemeral ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistStoreError

from ddpdoctor.evidence import Link, RankSet, Rendezvous, encode
from ddpdoctor.gather.network.pairs import Listener
from ddpdoctor.launch.meeting.addresses import reachable_address
from ddpdoctor.launch.meeting.entry import Entry
from ddpdoctor.launch.meeting.exchange import Exchange
from ddpdoctor.launch.meeting.layout import arrange_ranks, identify_machine
from ddpdoctor.launch.meeting.node_paths import choose_launch, resolve_peers, try_paths
from ddpdoctor.launch.meeting.store import (
    POLL_S,
    STORE_TIMEOUT_S,
    receive_parcel,
    send_parcel,
    wait_for_key,
)
from ddpdoctor.launch.plan import Bound, Plan
from ddpdoctor.launch.wire import EventWriter, word_exception

HEARING_S = 2.0
"""Seconds for what the others saw of the paths to arrive, also when ``--timeout`` is over."""


class Meeting:
    """One party of a check of several: a node, or one rank under another launcher."""

    def __init__(self, plan: Plan, facts: dict[str, Any], writer: EventWriter) -> None:
        self._plan = plan
        self._facts = facts
        self._writer = writer
        self._store: PrefixStore | None = None
        self._token = ""
        self._listeners: list[Listener] = []
        self._others: dict[int, dict[str, Any]] = {}
        """Party -> what it published; this one included."""
        self._duplicate: tuple[int, str, str] | None = None
        self._second = False
        """Another process had this party's place already."""
        self._given_up: str | None = None
        self._gently = False
        self._started = time.monotonic()
        self._entry = Entry(plan, writer, self._say_limit)
        self._bound = plan.bound(plan.join_timeout, "--join-timeout", self._started)

    def gather(self) -> bool:
        """Meet the others and try the paths; return whether the world may be launched.

        Everything that was seen is written as evidence, also when the others never come.
        """
        deadline = self._bound.end
        if not self._bound.left():
            self._writer.write(
                "blocked",
                reason=f"{self._bound.describe()} expired before all {self._plan.party_kind}s joined",
            )
            return False
        self._writer.write("stage", stage="tcp", limit=self._plan.join_timeout)
        found = self._entry.open(deadline)
        if self._entry.is_first:
            self._renumber(0)
        if isinstance(found, str):
            error: str | None = found
        else:
            self._store = found
            error = self._wait_for_all(deadline)
        self._write_rendezvous(error)
        reason = error if error is not None else self._decide(*self._look_around())
        if reason is not None:
            self._writer.write("blocked", reason=reason)
        return reason is None

    @property
    def plan(self) -> Plan:
        """The plan with this node's number in it."""
        return self._plan

    def exchange(self) -> Exchange | None:
        """Return the way to the others; None where the store was never reached."""
        if self._store is None:
            return None
        return Exchange(self._plan, self._others, self._writer, gently=self._gently, listens=self._second)

    def close(self) -> None:
        """Close the ports that were opened for the paths."""
        for listener in self._listeners:
            listener.close()

    def _need_store(self) -> PrefixStore:
        if self._store is None:
            raise RuntimeError("not connected")
        return self._store

    # -- the others

    def _wait_for_all(self, deadline: float) -> str | None:
        """Say who this is, and wait for the others; return who is missing."""
        try:
            self._enter(deadline)
            if self._duplicate is None:
                self._await_parties(deadline)
        except DistStoreError:
            return (
                f"{self._word([0])} of {self._plan.parties} did not connect to the store within "
                f"{self._say_limit()}"
            )
        except Exception as problem:  # the store goes away with the process that hosts it
            return f"the store at the rendezvous port disappeared: {type(problem).__name__}"
        if self._duplicate is not None:
            number, first, second = self._duplicate
            return f"{self._plan.party_kind} rank {number} is used twice, by {first} and by {second}"
        error = self._given_up or self._find_contradiction()
        if error is None:
            self._place()
        return error

    def _enter(self, deadline: float) -> None:
        """Take a place and publish who this is, gently: on a bad path large packets do not arrive."""
        store, plan = self._need_store(), self._plan
        store.set_timeout(timedelta(seconds=max(1.0, deadline - time.monotonic())))
        hosting = (
            plan.party == 0 if plan.launch.node_rank is not None or plan.external else self._entry.is_host
        )
        if plan.launch.node_rank is None and not plan.external:
            self._renumber(0 if hosting else store.add("tickets", 1))
        if hosting:
            store.set("token", secrets.token_hex(16))
        self._token = store.get("token").decode()
        store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
        self._open_listeners()
        # Hosts may have one name, and processes in containers one number: what is drawn tells them apart.
        me, mark = f"{socket.gethostname()}:{os.getpid()}", secrets.token_hex(8)
        first, _, drawn = (
            store.compare_set(f"claim/{self._plan.party}", "", f"{me}|{mark}").decode().partition("|")
        )
        if drawn != mark:
            self._duplicate, self._second = (self._plan.party, first, me), True
            store.set("given-up", json.dumps({"duplicate": self._duplicate}))
            return
        send_parcel(store, f"party/{self._plan.party}", json.dumps(self._introduce()), gently=True)

    def _renumber(self, index: int) -> None:
        """Without --node-rank the order of arrival numbers the parties; the one that hosts is the first."""
        self._plan = dataclasses.replace(self._plan, node=index, party=index, placed=True)
        self._write_place()

    def _place(self) -> None:
        """Number nodes and ranks as torch's agents will, now that all are there.

        c10d orders its nodes by name and process id (``_mark_rendezvous_complete`` in
        torch/distributed/elastic/rendezvous/dynamic_rendezvous.py); ranks are counted up over the nodes, which
        may have different numbers of them.
        """
        plan, launch = self._plan, self._plan.launch
        if plan.external:
            if not all(other["told"] for other in self._others.values()):
                self._sit_down()
            return
        if launch.node_rank is None:
            order = sorted(self._others, key=lambda p: (self._others[p]["name"], self._others[p]["pid"]))
            for number, party in enumerate(order):
                self._others[party]["node"] = number
                if self._others[party]["facts"] is not None:
                    self._others[party]["facts"]["node"] = number
        counts = {int(other["node"]): int(other["nproc"]) for other in self._others.values()}
        node = int(self._others[plan.party]["node"])
        self._plan = dataclasses.replace(
            plan,
            node=node,
            first_rank=sum(count for number, count in counts.items() if number < node),
            launch=dataclasses.replace(launch, world_size=sum(counts.values())),
        )
        self._write_place()

    def _sit_down(self) -> None:
        """Tell nodes and local ranks by the machines of those who came; counts in variables do not tell them."""
        seats = arrange_ranks(self._others)
        for party, seat in seats.items():
            other = self._others[party]
            other.update(node=seat.node, leads=seat.leads, facts=other["facts"] if seat.leads else None)
            if other["facts"] is not None:
                other["facts"]["node"] = seat.node
        mine = seats[self._plan.party]
        nodes = len({seat.node for seat in seats.values()})
        self._plan = dataclasses.replace(
            self._plan,
            node=mine.node,
            local_rank=mine.local_rank,
            local_world_size=mine.local_size,
            leads=mine.leads,
            launch=dataclasses.replace(self._plan.launch, nnodes=nodes, node_rank=mine.node),
        )
        self._write_place()

    def _write_place(self) -> None:
        plan = self._plan
        self._facts = {**self._facts, "node": plan.node}
        self._writer.write(
            "place",
            node=plan.node,
            party=plan.party,
            first_rank=plan.first_rank,
            world_size=plan.launch.world_size,
            nnodes=plan.launch.nnodes,
            leads=plan.leads,
        )

    def _introduce(self) -> dict[str, Any]:
        plan, launch = self._plan, self._plan.launch
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "party": plan.party,
            "node": plan.node,
            "machine": identify_machine(),
            "told": plan.told,
            "leads": plan.leads,
            "nnodes": launch.nnodes,
            "nproc": launch.nproc,
            "world_size": launch.world_size,
            "parties": plan.parties,
            "name": launch.local_addr or socket.getfqdn(),
            "address": reachable_address(self._facts),
            "ports": {listener.kind: listener.port for listener in self._listeners},
            "facts": self._facts if plan.leads else None,
        }

    def _await_parties(self, deadline: float) -> None:
        store, total = self._need_store(), self._plan.parties
        missing = list(range(total))
        while True:
            missing = [party for party in missing if not store.check([f"party/{party}"])]
            if not missing:
                break
            if store.check(["given-up"]):
                self._give_up(json.loads(store.get("given-up")))
                break
            if time.monotonic() > deadline:
                text = f"{self._word(missing)} of {total} did not join within {self._say_limit()}"
                store.set("given-up", json.dumps({"text": text}))
                self._given_up = text
                break
            self._writer.write("note", text=f"waiting for {self._word(missing)} of {total}")
            time.sleep(POLL_S)
        for party in sorted(set(range(total)) - set(missing)):
            self._others[party] = json.loads(receive_parcel(store, f"party/{party}"))

    def _give_up(self, why: dict[str, Any]) -> None:
        if "duplicate" in why:
            number, first, second = why["duplicate"]
            self._duplicate = (int(number), str(first), str(second))
        else:
            self._given_up = str(why.get("text", "another node gave up"))

    def _find_contradiction(self) -> str | None:
        """Nodes that were started with other world sizes would wait for each other in vain."""
        if not self._contradicts():
            return None
        kind = self._plan.party_kind
        words = ", ".join(f"{kind} {p}: {o['nnodes']} nodes" for p, o in sorted(self._others.items()))
        return f"the nodes were started with different sizes ({words})"

    def _contradicts(self) -> bool:
        return len({(other["nnodes"], other["parties"]) for other in self._others.values()}) > 1

    def _worlds(self) -> tuple[tuple[int, int], ...]:
        """Node -> world size that it expects."""
        sizes = {int(o["node"]): int(o["world_size"]) for o in self._others.values()}
        return tuple(sorted(sizes.items()))

    def _say_limit(self) -> str:
        """Return how long the wait was in fact, and what ended it."""
        return f"{time.monotonic() - self._started:.1f} s ({self._bound.describe()})"

    def _word(self, parties: list[int]) -> str:
        return f"{self._plan.party_kind}{'s' if len(parties) > 1 else ''} {RankSet(parties).listed()}"

    def _write_rendezvous(self, error: str | None) -> None:
        plan, launch = self._plan, self._plan.launch
        host = int(self._others[0]["node"]) if 0 in self._others else 0
        self._entry.write_rows(plan.node, host)
        per = 1 if plan.external else launch.nproc
        came = RankSet(rank for party in self._others for rank in range(party * per, (party + 1) * per))
        self._writer.emit(
            "rendezvous",
            Rendezvous(
                node=plan.node,
                backend=launch.rdzv_backend or "static",
                endpoint=launch.rdzv_endpoint or "",
                expected_nodes=launch.nnodes,
                joined_nodes=tuple(sorted({int(other["node"]) for other in self._others.values()})),
                expected_ranks=launch.world_size,
                joined_ranks=RankSet.span(launch.world_size) if error is None else came,
                waited_s=time.monotonic() - self._started,
                limit_s=self._bound.end - self._started,
                error=error,
                duplicates=() if self._duplicate is None else (self._duplicate,),
                duplicate_kind=plan.party_kind,
                limit_option=self._bound.option,
                own_ranks=RankSet(range(plan.first_rank, plan.first_rank + per))
                if plan.placed
                else RankSet(),
                worlds=self._worlds() if self._contradicts() else (),
            ),
        )
        for other in self._others.values():
            if other["facts"] is not None and other["node"] != plan.node:
                self._writer.write("row", kind="nodes", data=other["facts"])

    # -- the paths between the nodes

    def _open_listeners(self) -> None:
        """Listen on an ephemeral port and, where it is free, on the rendezvous port: both are tried."""
        if not self._plan.leads:
            return
        for kind, port in (("ephemeral", 0), ("rendezvous", self._plan.launch.master_port or 0)):
            with contextlib.suppress(OSError):
                self._listeners.append(Listener(self._token, kind=kind, port=port))

    def _look_around(self) -> tuple[list[Link], str | None]:
        """Dial every chosen node from here; look up the names that c10d would publish.

        Returns:
            The links, and what is wrong with the name of node 0, whose store all ranks will ask for.
        """
        plan = self._plan
        if not plan.leads or not plan.runs("tcp"):
            return [], None
        leaders = {int(other["node"]): other for other in self._others.values() if other["leads"]}
        self._writer.write("stage", stage="tcp", limit=plan.limits["tcp"])
        self._writer.write("note", text="testing the paths to the other nodes")
        links = try_paths(plan, leaders, self._token, lambda link: self._writer.emit("links", link))
        if plan.launch.rdzv_backend != "c10d":
            return links, None
        names = {node: str(other["name"]) for node, other in leaders.items() if node != plan.node}
        found = resolve_peers(plan.node, names)
        for each in found:
            self._writer.emit("resolutions", each)
        lost = next((each for each in found if each.of_node == 0 and each.error is not None), None)
        text = None if lost is None else f"{socket.gethostname()} cannot resolve {lost.name}: {lost.error}"
        return links, text

    def _decide(self, links: list[Link], unresolved: str | None) -> str | None:
        """Agree on whether to launch: the hosting party reads what all saw and says it once."""
        store, plan = self._need_store(), self._plan
        try:
            mine = json.dumps({"links": [encode(link) for link in links], "unresolved": unresolved})
            send_parcel(store, f"paths/{plan.party}", mine, gently=True)
            bound = plan.bound(plan.limits["tcp"] + STORE_TIMEOUT_S, "--stage-timeout tcp")
            bound = dataclasses.replace(bound, end=max(bound.end, time.monotonic() + HEARING_S))
            if plan.party == 0:
                store.set("decision", json.dumps(self._choose(bound)))
            elif not wait_for_key(store, "decision", bound.end + HEARING_S):
                return f"{self._word([0])} did not confirm the launch ({bound.describe()})"
            decision = json.loads(store.get("decision"))
        except Exception as problem:
            return f"the nodes could not agree to launch: {word_exception(problem)}"
        self._gently = bool(decision["gently"])
        return None if decision["reason"] is None else str(decision["reason"])

    def _choose(self, bound: Bound) -> dict[str, Any]:
        """Choose for all from what each saw; say who has not told it."""
        store, seen, missing = self._need_store(), [], []
        for party in range(self._plan.parties):
            if wait_for_key(store, f"paths/{party}", bound.end):
                seen.append(json.loads(receive_parcel(store, f"paths/{party}")))
            else:
                missing.append(party)
        choice = choose_launch(seen)
        if missing and choice["reason"] is None:
            choice["reason"] = f"{self._word(missing)} had not tested the paths yet ({bound.describe()})"
        return choice
