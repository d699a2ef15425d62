"""What the elastic agents of a job on several nodes tell each other, through the store of their own rendezvous.

One node is the head: the one that hosts the store; where nobody can be told to, the first. Keys, per node and never per
rank, all below ``ddpdoctor/``:

* ``head``: who is it;
* ``hello/<node>``: host, ranks, clock, and this node's end of its connection to the store;
* ``alive/<node>``: what the agent does, and its last sign of life;
* ``end/<node>``: what was seen on the node, as its supervisor summed it up when the agent was about to end;
* ``still/<node>`` and ``stop``: see `stillness`.

The head gathers the last into ``nodes/<node>.json`` of its run directory. Events of the agent's journal: ``node`` says
which one this is, ``peer`` what the head knows of another one (later events add to earlier ones), ``sent`` how telling
the head went.

A store may stop to answer (a cable, a host without power). So nothing is asked of it in the agent's own thread: that is
done by a thread that is left behind when its time is up, over a connection of our own, which the agent's does not wait
for.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

from ..core import journal
from . import parcels, sockets, stillness
from .stillness import key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ddpdoctor.facts import events

BEAT_S = 1.0
"""Seconds between two signs of life, 0.01 s more for each node, so that the head has 100 a second at most."""
MEETING_S = 0.3
"""How long a node waits for the others' hello, once its ranks are started. They all come out of the same rendezvous."""
WAIT_S = 3.0
"""How long the head waits for what others saw, unless ``DDPDOCTOR_NODES_WAIT`` says otherwise."""
SEND_S = 2.0
"""How long a node waits for its parcel to arrive, which takes one round trip. By then the kernel has sent what is not
acknowledged three times again (RFC 6298: after 0.2, 0.6 and 1.4 s)."""
CLOSED_S = 0.3
"""How long after the end of its connection a node's last words are still looked for."""
STEP_S = 0.005
LATE_S = 0.5
"""What an operation on the store may take beyond its own limit."""
LATE_TRIES = 60
"""How often, once with each sign of life, nodes are looked for that were late to the meeting."""
LOOK_S = 0.05


class _Meeting:
    """This node among the others of one rendezvous."""

    def __init__(self, agent: Any) -> None:
        group = agent._worker_group
        self.origin: Any = agent._store
        self.store: Any = None
        """Ours, once the meeting has begun."""
        self.pulse: Any = None
        """One more, of the signs of life alone: they are small, and where large packets vanish they still pass."""
        self.pulse_end: str | None = None
        """Our end of the connection."""
        self.busy = threading.Lock()
        """Held while something is asked of the store: for ever, where it never answers."""
        self.node = int(group.group_rank)
        self.count = int(group.group_world_size)
        self.ranks = [int(worker.global_rank) for worker in group.workers]
        self.port = sockets.find_port(self.origin)
        self.is_head = sockets.listens(self.port) if self.port is not None else self.node == 0
        self.stillness: stillness.Stillness | None = None
        self.head: dict[str, Any] = {}
        self.peers: dict[int, dict[str, Any]] = {}
        self.next_beat = 0.0
        self.late = 0
        """How often nodes were looked for that had not told who they are."""
        self.mute = False
        self.sent = False
        self.left = False

    def open(self) -> None:
        """Take a connection of our own: the agent's would be blocked for it while ours waits for an answer."""
        try:
            self.store = self.origin.clone()
            self._open_pulse()
        except Exception:  # an older torch, or a store that cannot
            self.store = self.store or self.origin
        self.stillness = stillness.Stillness(self.store, self.node, self.others(), self.is_head)

    def _open_pulse(self) -> None:
        known = sockets.list_connections(self.port) if self.port is not None else []
        pulse = self.origin.clone()
        if self.port is not None:
            pulse.check([key_of("head")])  # it is connected when it has answered
            new = [end for end in sockets.list_connections(self.port) if end not in known]
            self.pulse_end = new[0] if len(new) == 1 else None
        self.pulse = pulse

    def others(self) -> list[int]:
        return [node for node in range(self.count) if node != self.node]


_meeting: _Meeting | None = None


def look(_: object, frame: object, args: tuple[Any, ...]) -> None:
    """Meet the others once the ranks are started, and give a sign of life from time to time."""
    global _meeting
    agent = args[0]
    store = getattr(agent, "_store", None)
    group = getattr(agent, "_worker_group", None)
    if store is None or (getattr(group, "group_world_size", None) or 0) < 2:
        return
    if _meeting is None or _meeting.origin is not store:
        before, _meeting = _meeting, _Meeting(agent)
        _meet(_meeting, again=before is not None)
    elif time.monotonic() >= _meeting.next_beat:
        _beat(_meeting, "running")
        _hear_late(_meeting)
    if _meeting.stillness is not None:
        _meeting.stillness.look(functools.partial(_within, _meeting))


def note_stopping(*_: object) -> None:
    """Say that the agent is about to stop its ranks, which may take it half a minute."""
    if _meeting is not None and not _meeting.left:
        _beat(_meeting, "stopping")


def note_done(*_: object) -> None:
    """Tell what was seen before the agent waits for the others: its ranks have ended well."""
    if _meeting is not None:
        _beat(_meeting, "done")
        if not _meeting.is_head:
            _send(_meeting)


def leave(*_: object) -> None:
    """Tell what was seen, or gather it: the agent is about to end."""
    meeting = _meeting
    if meeting is None or meeting.left:
        return
    meeting.left = True
    if not meeting.is_head:
        _send(meeting)
        return
    # Where it ends with an exception, such as that of a signal, nobody is waited for.
    wait = 0.0 if sys.exc_info()[0] is not None else _read_wait()
    if not _within(meeting, wait + LATE_S, "gathering", lambda: _gather(meeting, wait)):
        journal.trouble("gathering", "the store did not answer in time")


def _read_wait() -> float:
    try:
        return min(max(float(os.environ.get("DDPDOCTOR_NODES_WAIT", "")), 0.0), 600.0)
    except ValueError:
        return WAIT_S


def _beat(meeting: _Meeting, state: str) -> None:
    meeting.next_beat = time.monotonic() + BEAT_S + meeting.count / 100
    if meeting.mute or meeting.store is None:
        return
    alone = meeting.pulse is not None
    if not alone and not meeting.busy.acquire(False):
        return
    try:
        # The store does not answer this, so nothing is waited for.
        store = meeting.pulse if alone else meeting.store
        store.set(key_of("alive", meeting.node), f"{state} {time.time_ns()}")
    except RuntimeError:
        meeting.mute = True  # the head is gone; how the sending goes at the end tells it
    finally:
        if not alone:
            meeting.busy.release()


def _meet(meeting: _Meeting, again: bool) -> None:
    """Exchange hellos; one way and back gives the difference of the clocks."""
    import json
    import socket

    own: events.Node = {"host": socket.gethostname(), "ranks": meeting.ranks}
    journal.write("node", {**own, "node": meeting.node, "nodes": meeting.count, "head": meeting.is_head})
    hello = dict(own, run=os.environ.get("DDPDOCTOR_RUN", ""))

    def lead() -> None:
        meeting.open()
        began = time.time_ns()
        meeting.store.set(key_of("head"), json.dumps(dict(hello, node=meeting.node)))
        others = meeting.others()
        for number in _await(meeting.store, [key_of("hello", node) for node in others], MEETING_S):
            _hear(meeting, others[number], began, time.time_ns(), again)
        _note_visible(meeting, list(meeting.peers))

    def follow() -> None:
        meeting.open()
        if meeting.port is not None:
            hello["socket"] = sockets.find_connection(meeting.port)
        for _ in _await(meeting.store, [key_of("head")], MEETING_S):
            hello["heard_ns"] = time.time_ns()
            meeting.head = _read_object(meeting.store.get(key_of("head")))
        meeting.store.set(key_of("hello", meeting.node), json.dumps(hello))

    _within(meeting, MEETING_S + LATE_S, "meeting", lead if meeting.is_head else follow)
    _beat(meeting, "running")


def _await(store: Any, keys: Sequence[str], limit: float) -> Iterator[int]:
    """Yield the positions of keys that are there, as they come.

    By looking again and again: where torch waits, it prints a warning into the job's output when the time is up.
    """
    pending = list(range(len(keys)))
    end = time.monotonic() + limit
    while pending:
        for number in list(pending):
            if store.check([keys[number]]):
                pending.remove(number)
                yield number
        if time.monotonic() >= end:
            return
        if pending:
            time.sleep(STEP_S)


def _hear(meeting: _Meeting, node: int, began: int, now: int, again: bool) -> None:
    """Take a hello; ``began`` and ``now`` enclose the moment in which it was written."""
    hello = _read_object(meeting.store.get(key_of("hello", node)))
    heard = hello.get("heard_ns")
    known: events.Peer = {"host": str(hello.get("host"))[:255], "ranks": _read_numbers(hello.get("ranks"))}
    # After a restart without a new rendezvous the hello of the first meeting still stands there.
    if began and isinstance(heard, int) and not again:
        known["offset_ns"] = heard - (began + now) // 2
        known["error_ns"] = (now - began) // 2
    meeting.peers[node] = dict(known, socket=hello.get("socket"))
    journal.write("peer", {**known, "node": node})


def _hear_late(meeting: _Meeting) -> None:
    """Take the hellos that did not come in time, while those nodes live: later their connections are not to be seen."""
    missing = [node for node in meeting.others() if node not in meeting.peers]
    if not missing or not meeting.is_head or meeting.store is None or meeting.late >= LATE_TRIES:
        return
    meeting.late += 1

    def hear() -> None:
        come = [node for node in missing if meeting.store.check([key_of("hello", node)])]
        for node in come:
            _hear(meeting, node, 0, 0, True)
        _note_visible(meeting, come)

    _within(meeting, LATE_S, "meeting", hear)


def _note_visible(meeting: _Meeting, nodes: Sequence[int]) -> None:
    """Note whose end of the connection is seen from here: between translated addresses it is not."""
    connected = sockets.list_peers(meeting.port) if nodes and meeting.port is not None else None
    for node in nodes:
        peer = meeting.peers[node]
        peer["visible"] = connected is not None and peer.get("socket") in connected


def _read_object(data: Any) -> dict[str, Any]:
    import json

    found = json.loads(bytes(data)[:65536])
    return found if isinstance(found, dict) else {}


def _read_numbers(value: Any) -> list[int]:
    return [each for each in value if type(each) is int][:1024] if isinstance(value, list) else []


def _within(meeting: _Meeting, limit: float, where: str, task: Callable[[], None]) -> bool:
    """Do something that may never end, in a thread; return whether it has. One at a time."""
    began = time.monotonic()
    if not meeting.busy.acquire(True, limit):
        return False

    def run() -> None:
        try:
            task()
        except Exception as error:
            journal.trouble(where, error)
        finally:
            meeting.busy.release()

    thread = threading.Thread(target=run, name="ddpdoctor-nodes", daemon=True)
    thread.start()
    thread.join(max(limit - (time.monotonic() - began), 0.0))
    return not thread.is_alive()


def _send(meeting: _Meeting) -> None:
    """Put what was seen here into the store, once."""
    if meeting.sent:
        return
    meeting.sent = True
    parcel = parcels.ask_summary(meeting.node)
    arrived: list[bool] = []

    def send() -> None:
        key = key_of("end", meeting.node)
        if meeting.store is None:
            return
        try:
            meeting.store.set(key, parcel)
            arrived.append(bool(meeting.store.check([key])))
        except RuntimeError:
            return  # the head is gone
        if not meeting.head and meeting.store.check([key_of("head")]):
            meeting.head = _read_object(meeting.store.get(key_of("head")))

    _within(meeting, SEND_S, "sending", send)
    connection = None
    if not any(arrived) and meeting.port is not None:
        connection = sockets.judge_connection(meeting.port, meeting.pulse_end)
    head = (
        {name: meeting.head.get(name) for name in ("node", "host", "ranks", "run")} if meeting.head else None
    )
    journal.write("sent", {"arrived": any(arrived), "head": head, "connection": connection})


def _gather(meeting: _Meeting, wait: float) -> None:
    """Wait for what the others saw and keep it; then write down who did not tell, and what is known of him."""
    store = meeting.store
    if store is None:
        return
    for node in meeting.others():
        if node not in meeting.peers and store.check([key_of("hello", node)]):
            _hear(meeting, node, 0, 0, True)
    beats = {node: _read_beat(store, node) for node in meeting.others()}
    closed: dict[int, float] = {}
    pending = {node for node in meeting.others() if node in meeting.peers}
    end = time.monotonic() + wait
    while pending:
        for node in sorted(pending):
            if store.check([key_of("end", node)]):
                pending.discard(node)
                whole = parcels.keep(node, store.get(key_of("end", node)))
                journal.write("peer", {"node": node, "told": True, "whole": whole, "state": "ended"})
        now = time.monotonic()
        gone = {node for node, since in closed.items() if now - since > CLOSED_S}
        if not pending - gone or now >= end:
            break
        connected = sockets.list_peers(meeting.port) if meeting.port is not None else None
        for node in pending:
            known = meeting.peers[node]
            if connected is not None and known.get("visible") and known.get("socket") not in connected:
                closed.setdefault(node, now)
        time.sleep(LOOK_S)
    for node in meeting.others():
        if node in pending or node not in meeting.peers:
            state, beat = _read_beat(store, node)
            journal.write(
                "peer",
                {
                    "node": node,
                    "told": False,
                    "state": state,
                    "alive_ns": beat,
                    "moved": beat != beats[node][1],
                    "closed": node in closed if meeting.peers.get(node, {}).get("visible") else None,
                },
            )


def _read_beat(store: Any, node: int) -> tuple[str | None, int | None]:
    """Return what an agent said last that it does, and when, by its own clock."""
    if not store.check([key_of("alive", node)]):
        return None, None
    state, _, when = bytes(store.get(key_of("alive", node)))[:100].decode("ascii", "replace").partition(" ")
    return state, int(when) if when.isdigit() else None
