"""Where the nodes of one check meet before and after the world: torch's own TCPStore on the rendezvous port.

Before the ranks are launched every node says who it is, the paths between the nodes are tried, and one
decision is made for all: launch or not. Afterwards every node's evidence is shared, so that each can print
the same verdict. No port is used but the rendezvous port and, for the paths, ephemeral ones.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from ddpdoctor.evidence import (
    Evidence,
    HostMatch,
    Link,
    NodeFacts,
    RankSet,
    Rendezvous,
    StageRecord,
    decode,
    encode,
    merge_evidence,
)
from ddpdoctor.gather.names import resolve
from ddpdoctor.gather.pairs import Listener, choose_pairs, dial, push_large
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.wire import EventWriter, word_exception

POLL_S = 0.1
WATCH_S = 0.25
"""How often the others are asked whether they ended the run."""
PARALLEL_DIALS = 8
DIAL_LIMIT_S = 5.0
"""For one TCP connection: Linux sends SYN at 0, 1 and 3 s (tcp_syn_retries), a fourth would come at 7 s."""
STORE_TIMEOUT_S = 30.0
"""For one operation on the store once it is connected."""
GATHER_LIMIT_S = 15.0
"""How long the hosting node waits for the evidence of the others."""


_OWN = {"host_matches": "node", "links": "source"}
"""The field in which a row names this node."""


class Meeting:
    """One party of a check of several: a node, or one rank under another launcher."""

    def __init__(self, plan: Plan, facts: dict[str, Any], writer: EventWriter) -> None:
        self._plan = plan
        self._facts = facts
        self._writer = writer
        self._store: PrefixStore | None = None
        self._server: TCPStore | None = None
        self._token = ""
        self._listeners: list[Listener] = []
        self._others: dict[int, dict[str, Any]] = {}
        """Party -> what it published; this one included."""
        self._duplicate: tuple[int, str, str] | None = None
        self._given_up: str | None = None
        self._is_host = False
        self._early: list[tuple[str, Any]] = []
        """Rows from before this node knew its number."""

    # -- before the world

    def gather(self) -> bool:
        """Meet the others and try the paths; return whether the world may be launched.

        Everything that was seen is written as evidence, also when the others never come.
        """
        started = time.monotonic()
        self._writer.write("stage", stage="tcp", limit=self._plan.join_timeout)
        error = self._connect(started + self._plan.join_timeout)
        if error is None:
            error = self._wait_for_all(started + self._plan.join_timeout)
        self._write_rendezvous(started, error)
        if error is not None:
            self._writer.write("blocked", reason=error)
            return False
        decision = self._decide(self._try_paths())
        if decision is not None:
            self._writer.write("blocked", reason=decision)
        return decision is None

    def _connect(self, deadline: float) -> str | None:
        """Open the store as torchrun would; return why not."""
        launch = self._plan.launch
        host, port = launch.master_addr or "127.0.0.1", launch.master_port or 0
        hosts = self._is_host = self._hosts_store(host)
        if not hosts:
            error = self._wait_for_port(host, port, deadline)
            if error is not None:
                return error
        try:
            self._server = TCPStore(
                host,
                port,
                is_master=hosts,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timedelta(seconds=STORE_TIMEOUT_S),
            )
        except Exception as problem:  # torch raises RuntimeError, DistNetworkError and ValueError here
            return word_exception(problem)
        self._store = PrefixStore(f"ddpdoctor/{launch.rdzv_id}", self._server)
        return None

    def _hosts_store(self, host: str) -> bool:
        """Decide who hosts as torch does: by node rank, or by comparing names for c10d."""
        plan = self._plan
        if plan.external:
            return plan.party == 0 and not plan.agent_store
        if plan.launch.rdzv_backend == "static":
            return plan.party == 0
        matches = _matches_this_machine(host)
        endpoint = plan.launch.rdzv_endpoint or host
        self._early.append(("host_matches", HostMatch(plan.node, endpoint, matches, _own_names())))
        return matches

    def _wait_for_port(self, host: str, port: int, deadline: float) -> str | None:
        """Dial the rendezvous port until somebody listens, and note how the last attempt went."""
        plan = self._plan
        self._writer.write("note", text=f"waiting for {host}:{port} to listen")
        while True:
            limit = max(0.5, min(DIAL_LIMIT_S, deadline - time.monotonic()))
            begun = time.monotonic()
            try:
                socket.create_connection((host, port), timeout=limit).close()
                link = Link(plan.node, 0, "rendezvous", True, host, port, time.monotonic() - begun)
            except OSError as problem:
                link = Link(plan.node, 0, "rendezvous", False, host, port, error=_word_error(problem))
            if link.ok or time.monotonic() >= deadline:
                if (plan.leads and plan.node != 0 and not plan.external) or not link.ok:
                    self._early.append(("links", link))
                return None if link.ok else f"{host}:{port}: {link.error}"
            time.sleep(0.2)

    def _wait_for_all(self, deadline: float) -> str | None:
        """Say who this is, and wait for the others; return who is missing."""
        try:
            self._enter()
            if self._duplicate is None:
                self._await_parties(deadline)
        except Exception as problem:  # the store goes away with the process that hosts it
            return f"the store at the rendezvous port went away: {type(problem).__name__}"
        if self._duplicate is not None:
            number, first, second = self._duplicate
            return f"{self._kind} rank {number} is claimed twice, by {first} and by {second}"
        return self._given_up or self._find_contradiction()

    def _enter(self) -> None:
        """Take a place and publish who this is, in few bytes: on a bad path large packets may not arrive."""
        store, plan = self._need_store(), self._plan
        hosting = plan.party == 0 if plan.launch.node_rank is not None or plan.external else self._is_host
        if plan.launch.node_rank is None and not plan.external:
            self._renumber(0 if hosting else store.add("tickets", 1))
        if hosting:
            store.set("token", secrets.token_hex(16))
        self._token = store.get("token").decode()
        self._open_listeners()
        me = f"{socket.gethostname()}:{os.getpid()}"
        first = store.compare_set(f"claim/{self._plan.party}", "", me).decode()
        if first != me:
            self._duplicate = (self._plan.party, first, me)
            store.set("given-up", json.dumps({"duplicate": self._duplicate}))
            return
        store.set(f"party/{self._plan.party}", json.dumps(self._introduce()))

    def _renumber(self, index: int) -> None:
        """Without --node-rank the order of arrival numbers the nodes, as c10d does; the host is node 0."""
        self._plan = dataclasses.replace(self._plan, node=index, party=index)
        self._facts = {**self._facts, "node": index}
        self._writer.write("index", index=index)

    def _introduce(self) -> dict[str, Any]:
        plan, launch = self._plan, self._plan.launch
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "party": plan.party,
            "node": plan.node,
            "leads": plan.leads,
            "nnodes": launch.nnodes,
            "nproc": launch.nproc,
            "world_size": launch.world_size,
            "parties": plan.parties,
            "name": launch.local_addr or socket.getfqdn(),
            "address": _reachable_address(self._facts),
            "ports": {listener.kind: listener.port for listener in self._listeners},
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
                text = f"{self._word(missing)} of {total} did not come within {self._plan.join_timeout:g} s"
                store.set("given-up", json.dumps({"text": text}))
                self._given_up = text
                break
            self._writer.write("note", text=f"waiting for {self._word(missing)} of {total}")
            time.sleep(POLL_S)
        for party in set(range(total)) - set(missing):
            self._others[party] = json.loads(store.get(f"party/{party}"))

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
        words = ", ".join(f"{self._kind} {p}: {o['nnodes']} nodes" for p, o in sorted(self._others.items()))
        return f"the nodes were started for different worlds ({words})"

    def _contradicts(self) -> bool:
        return len({(other["nnodes"], other["parties"]) for other in self._others.values()}) > 1

    def _worlds(self) -> tuple[tuple[int, int], ...]:
        """Node -> world size that it expects."""
        sizes = {int(o["node"]): int(o["world_size"]) for o in self._others.values()}
        return tuple(sorted(sizes.items()))

    @property
    def _kind(self) -> str:
        return "rank" if self._plan.external else "node"

    def _word(self, parties: list[int]) -> str:
        return f"{self._kind}{'s' if len(parties) > 1 else ''} {RankSet(parties)}"

    def _need_store(self) -> PrefixStore:
        if self._store is None:
            raise RuntimeError("not connected")
        return self._store

    def _write_rendezvous(self, started: float, error: str | None) -> None:
        plan, launch = self._plan, self._plan.launch
        joined = sorted(self._others)
        for kind, row in self._early:
            self._writer.emit(kind, dataclasses.replace(row, **{_OWN[kind]: plan.node}))
        per = 1 if plan.external else launch.nproc
        ranks = RankSet(rank for party in joined for rank in range(party * per, (party + 1) * per))
        nodes = tuple(sorted({int(other["node"]) for other in self._others.values()}))
        self._writer.emit(
            "rendezvous",
            Rendezvous(
                node=plan.node,
                backend=launch.rdzv_backend or "static",
                endpoint=launch.rdzv_endpoint or "",
                expected_nodes=launch.nnodes,
                joined_nodes=nodes,
                expected_ranks=launch.world_size,
                joined_ranks=ranks,
                waited_s=time.monotonic() - started,
                limit_s=plan.join_timeout,
                error=error,
                duplicates=() if self._duplicate is None else (self._duplicate,),
                duplicate_kind=self._kind,
                worlds=self._worlds() if self._contradicts() else (),
            ),
        )

    # -- the paths between the nodes

    def _open_listeners(self) -> None:
        """Listen on an ephemeral port and, where it is free, on the rendezvous port: both are tried."""
        if not self._plan.leads:
            return
        for kind, port in (("ephemeral", 0), ("rendezvous", self._plan.launch.master_port or 0)):
            with contextlib.suppress(OSError):
                self._listeners.append(Listener(self._token, kind=kind, port=port))

    def _leaders(self) -> dict[int, dict[str, Any]]:
        """Node -> what its leading party said."""
        return {int(other["node"]): other for other in self._others.values() if other["leads"]}

    def _try_paths(self) -> list[Link]:
        """Dial every chosen node from here; look up the names that c10d would publish."""
        plan, leaders = self._plan, self._leaders()
        if not plan.leads or not plan.runs("tcp"):
            return []
        targets = [target for source, target in choose_pairs(len(leaders)) if source == plan.node]
        self._writer.write("stage", stage="tcp", limit=plan.limits["tcp"])
        self._writer.write("note", text=f"trying the paths to {len(targets)} other nodes")
        with ThreadPoolExecutor(max_workers=PARALLEL_DIALS) as pool:
            links = [
                link for group in pool.map(lambda t: self._try_path(t, leaders[t]), targets) for link in group
            ]
        for link in links:
            self._writer.emit("links", link)
        if plan.launch.rdzv_backend == "c10d" and plan.launch.local_addr is None:
            for node, other in leaders.items():
                if node != plan.node:
                    self._writer.emit("resolutions", resolve(plan.node, other["name"], "peer", of_node=node))
        return links

    def _try_path(self, target: int, other: dict[str, Any]) -> list[Link]:
        source, address = self._plan.node, str(other["address"])
        links = []
        for kind, port in other["ports"].items():
            links.append(dial(source, target, address, int(port), kind, self._token, DIAL_LIMIT_S))
        if int(other["party"]) == 0:  # there torch's own store listens, which knows no greeting of ours
            port = self._plan.launch.master_port or 0
            links.append(dial(source, target, address, port, "rendezvous", None, DIAL_LIMIT_S))
        first = links[0] if links else None
        if first is not None and first.ok and first.port is not None:
            links.append(push_large(source, target, address, first.port, self._token, limit_s=DIAL_LIMIT_S))
        return links

    def _decide(self, links: list[Link]) -> str | None:
        """Agree on whether to launch: the hosting party reads what all saw and says it once."""
        store, plan = self._need_store(), self._plan
        try:
            store.set(f"paths/{plan.party}", _pack(json.dumps([encode(link) for link in links])))
            if plan.party == 0:
                everyone = [f"paths/{party}" for party in range(plan.parties)]
                store.wait(everyone, timedelta(seconds=plan.limits["tcp"] + STORE_TIMEOUT_S))
                seen = [decode(Link, row) for key in everyone for row in json.loads(_unpack(store.get(key)))]
                store.set("decision", find_broken_path(seen) or "launch")
            store.wait(["decision"], timedelta(seconds=plan.limits["tcp"] + 2 * STORE_TIMEOUT_S))
            decision = store.get("decision").decode()
        except Exception as problem:
            return f"the nodes could not agree to launch: {word_exception(problem)}"
        if decision != "launch":
            return decision
        if plan.leads:
            with contextlib.suppress(Exception):
                store.set(f"facts/{plan.party}", _pack(json.dumps(self._facts)))
        return None

    # -- during and after the world

    @property
    def plan(self) -> Plan:
        """The plan with this node's number in it."""
        return self._plan

    def announce_cut(self, text: str) -> None:
        """Tell the others that this node ended the run, and why."""
        with contextlib.suppress(Exception):
            self._client().compare_set("cut", "", f"{self._plan.party}|{socket.gethostname()}: {text}")

    def watch_others(self, done: threading.Event) -> None:
        """Write an event when another party ends the run; ends with ``done`` or the store."""
        with contextlib.suppress(Exception):
            store = self._client()
            while not done.wait(WATCH_S):
                if store.check(["cut"]):
                    party, _, text = store.get("cut").decode().partition("|")
                    if int(party) != self._plan.party:
                        self._writer.write("peer-cut", text=f"{self._kind} {party} ended the run ({text})")
                    return

    def publish(self, path: Path) -> None:
        """Share this party's evidence; the hosting party joins all and everyone gets the whole."""
        merged: str | None = None
        if self._store is None:
            self._writer.write("exchanged", path=None)
            return
        with contextlib.suppress(Exception):
            store = self._client()
            store.set(f"evidence/{self._plan.party}", _pack(path.read_text()))
            if self._plan.party == 0:
                text = json.dumps(self._join_evidence(store).to_dict())
                store.set("merged", _pack(text))
            else:
                store.wait(["merged"], timedelta(seconds=GATHER_LIMIT_S * 2))
                text = _unpack(store.get("merged"))
            merged = str(path.with_name("merged.json"))
            Path(merged).write_text(text)
            store.set(f"fetched/{self._plan.party}", "1")
            if self._plan.party == 0:
                keys = [f"fetched/{party}" for party in self._others]
                store.wait(keys, timedelta(seconds=GATHER_LIMIT_S))
        self._writer.write("exchanged", path=merged)

    def _join_evidence(self, store: PrefixStore) -> Evidence:
        """Wait for what the others saw; a party that sends nothing is named in the whole."""
        end = time.monotonic() + GATHER_LIMIT_S
        waiting, parts = set(self._others), {}
        while waiting and time.monotonic() < end:
            for party in sorted(waiting):
                if store.check([f"evidence/{party}"]):
                    parts[party] = Evidence.from_dict(json.loads(_unpack(store.get(f"evidence/{party}"))))
            waiting -= set(parts)
            if waiting:
                time.sleep(POLL_S)
        silent = [
            StageRecord(int(self._others[p]["node"]), "bandwidth", "unreached", "this node sent no evidence")
            for p in sorted(waiting)
        ]
        whole = merge_evidence([parts[party] for party in sorted(parts)])
        nodes = {facts.node: facts for facts in whole.nodes}
        for party in sorted(waiting):
            if store.check([f"facts/{party}"]):
                facts = decode(NodeFacts, json.loads(_unpack(store.get(f"facts/{party}"))))
                nodes.setdefault(facts.node, facts)
        return dataclasses.replace(
            whole, nodes=tuple(nodes[i] for i in sorted(nodes)), stages=(*whole.stages, *silent)
        )

    def _client(self) -> PrefixStore:
        """Open a connection of its own: one that waits keeps all its other users waiting."""
        launch = self._plan.launch
        own = TCPStore(
            launch.master_addr or "127.0.0.1",
            launch.master_port or 0,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_TIMEOUT_S),
        )
        return PrefixStore(f"ddpdoctor/{launch.rdzv_id}", own)

    def close(self) -> None:
        """Close the ports that were opened for the paths."""
        for listener in self._listeners:
            listener.close()


def find_broken_path(links: list[Link]) -> str | None:
    """Return what rules out a world, worded; else None.

    That is a pair of nodes of which neither can reach the other on an ephemeral port (gloo and NCCL connect every
    pair, but only one side dials: a path that works one way may do), or a path on which large packets vanish.
    """
    state: dict[tuple[int, int], bool] = {
        (link.source, link.target): link.ok for link in links if link.kind == "ephemeral"
    }
    for (source, target), ok in sorted(state.items()):
        if not ok and not state.get((target, source), False):
            return f"nodes {source} and {target} cannot reach each other on ephemeral ports"
    lost = next((link for link in links if link.kind == "large" and not link.ok and link.bytes_passed), None)
    if lost is not None:
        return f"{lost.bytes_failed} bytes at once do not get from node {lost.source} to node {lost.target}"
    return None


def _reachable_address(facts: dict[str, Any]) -> str:
    """The address to dial: the one that gloo would publish, or the real one where that is loopback."""
    advertised = facts.get("advertised")
    if advertised and not ipaddress.ip_address(advertised.partition("%")[0]).is_loopback:
        return str(advertised)
    return str(facts.get("route_address") or advertised or socket.gethostname())


def _own_names() -> tuple[str, ...]:
    names = [socket.gethostname(), socket.getfqdn()]
    with contextlib.suppress(OSError):
        names += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    return tuple(dict.fromkeys(names))


def _matches_this_machine(host: str) -> bool:
    """Ask torch's own rule where it can be found, so that what is reported is what torchrun would do."""
    from torch.distributed.elastic.rendezvous import utils

    rule = getattr(utils, "_matches_machine_hostname", None)
    if rule is None:
        return host in ("localhost", *_own_names())
    try:
        return bool(rule(host))
    except OSError:
        return False


def _word_error(problem: OSError) -> str:
    return problem.strerror or str(problem) or type(problem).__name__


def _pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def _unpack(data: bytes) -> str:
    return zlib.decompress(base64.b64decode(data)).decode()
