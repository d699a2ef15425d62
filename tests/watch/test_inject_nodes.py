"""What agents tell each other through the store, with a store of our own: in time, bounded, and never harmful."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.watch.injecting import INJECT

LONG_S = 30.0
"""Nothing here takes long; a limit for a busy machine."""


class Store:
    """As much of torch's store as is used; may be broken, or never answer."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.broken = False
        self.stuck = threading.Event()
        self.stuck.set()

    def set(self, key: str, value: str) -> None:
        if self.broken:
            raise RuntimeError("Broken pipe")
        self.data[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        self.stuck.wait()
        if self.broken:
            raise RuntimeError("Broken pipe")
        return all(key in self.data for key in keys)

    def get(self, key: str) -> bytes:
        return self.data[key]


@dataclass
class World:
    """The module under test, and what it wrote."""

    module: Any
    folder: Path
    store: Store = field(default_factory=Store)
    events: list[dict[str, Any]] = field(default_factory=list)

    def agent(self, node: int, count: int = 2, store: Any = None) -> Any:
        workers = [SimpleNamespace(global_rank=2 * node + n) for n in range(2)]
        group = SimpleNamespace(group_rank=node, group_world_size=count, workers=workers)
        return SimpleNamespace(_store=store if store is not None else self.store, _worker_group=group)

    def enter(self, node: int, count: int = 2) -> None:
        """Be the agent of a node that looks after its ranks for the first time."""
        self.module._meeting = None
        self.module.look(None, None, (self.agent(node, count),))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.syspath_prepend(str(INJECT))
    (tmp_path / "processes").mkdir()
    module = importlib.import_module("ddpdoctor_watch.nodes.agents")
    journal = importlib.import_module("ddpdoctor_watch.core.journal")
    made = World(module, tmp_path)
    monkeypatch.setattr(
        journal, "write", lambda event, fields: made.events.append({"event": event, **fields})
    )
    monkeypatch.setattr(journal, "folder", lambda: str(tmp_path / "processes"))
    monkeypatch.setattr(module, "MEETING_S", 0.05)
    monkeypatch.setenv("DDPDOCTOR_RUN", "/runs/a")
    monkeypatch.setenv("DDPDOCTOR_NODES_WAIT", "0.3")
    monkeypatch.delenv("DDPDOCTOR_STREAMS", raising=False)
    yield made
    made.store.stuck.set()
    for name in [name for name in sys.modules if name.startswith("ddpdoctor_watch")]:
        del sys.modules[name]


@contextlib.contextmanager
def supervisor(world: World, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[list[bytes]]:
    """Answer what is asked of the supervisor's socket."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.folder / "node"))
        listener.listen(1)
        monkeypatch.setenv("DDPDOCTOR_STREAMS", f"{world.folder}/streams|1,2")

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                asked.append(peer.recv(4096))
                with contextlib.suppress(OSError):
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(LONG_S)


def within(limit: float, task: Callable[[], object]) -> None:
    began = time.monotonic()
    task()
    assert time.monotonic() - began < limit


def test_one_node_has_nobody_to_tell(world: World) -> None:
    world.enter(0, count=1)
    world.module.note_stopping()
    world.module.note_done()
    world.module.leave()
    assert world.store.data == {}
    assert world.events == []


def test_other_tells_and_the_head_keeps_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({"processes": []}).encode()
    world.enter(0)
    head = world.module._meeting
    world.enter(1)
    with supervisor(world, monkeypatch, zlib.compress(content)) as asked:
        world.module.leave()
    assert asked == [b'{"node":1}\n']
    (sent,) = world.of("sent")
    assert sent["arrived"]
    assert sent["head"] == {"node": 0, "host": socket.gethostname(), "ranks": [0, 1], "run": "/runs/a"}
    world.module._meeting = head
    world.module.leave()
    kept = world.folder / "nodes" / "1.json"
    assert kept.read_bytes() == content
    assert kept.stat().st_mode & 0o777 == 0o600
    hello, told = world.of("peer")
    assert (hello["node"], hello["host"], hello["ranks"]) == (1, socket.gethostname(), [2, 3])
    assert "offset_ns" not in hello  # it was read long after it had been written
    assert (told["node"], told["told"], told["whole"]) == (1, True, True)


def test_agents_own_connection_is_left_alone(world: World) -> None:
    ours = Store()
    agents = SimpleNamespace(clone=lambda: ours)  # nothing else may be asked of it
    world.module._meeting = None
    agent = world.agent(1, store=agents)
    world.module.look(None, None, (agent,))
    world.module.look(None, None, (agent,))
    world.module.note_stopping()
    world.module.leave()
    assert {"ddpdoctor/hello/1", "ddpdoctor/alive/1", "ddpdoctor/end/1"} <= ours.data.keys()
    assert world.of("trouble") == []


def test_meeting_measures_the_clocks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.module, "MEETING_S", LONG_S)
    other = world.module._Meeting(world.agent(1))
    thread = threading.Thread(target=world.module._meet, args=(other, False), daemon=True)
    thread.start()
    world.enter(0)
    thread.join(LONG_S)
    (hello,) = world.of("peer")
    assert abs(hello["offset_ns"]) <= hello["error_ns"]  # it is one clock


def test_agent_gives_signs_of_life_and_says_what_it_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent(1)
    world.module._meeting = None
    world.module.look(None, None, (agent,))
    first = world.store.data["ddpdoctor/alive/1"]
    world.module.look(None, None, (agent,))
    assert world.store.data["ddpdoctor/alive/1"] == first  # not each time that it looks
    monkeypatch.setattr(world.module._meeting, "next_beat", 0.0)
    world.module.look(None, None, (agent,))
    assert world.store.data["ddpdoctor/alive/1"] != first
    assert first.startswith(b"running ")
    world.module.note_stopping()
    assert world.store.data["ddpdoctor/alive/1"].startswith(b"stopping ")
    world.module.note_done()
    assert world.store.data["ddpdoctor/alive/1"].startswith(b"done ")
    assert "ddpdoctor/end/1" in world.store.data


def test_head_waits_for_those_who_said_hello_and_no_longer_than_it_may(world: World) -> None:
    world.enter(0, count=3)
    world.store.set("ddpdoctor/hello/1", json.dumps({"host": "node-b", "ranks": [2]}))
    world.store.set("ddpdoctor/alive/1", "running 17")
    within(LONG_S, world.module.leave)
    last = {each["node"]: each for each in world.of("peer")}
    assert (last[1]["told"], last[1]["state"], last[1]["alive_ns"], last[1]["moved"]) == (
        False,
        "running",
        17,
        False,
    )
    assert (last[2]["told"], last[2]["state"]) == (False, None)
    assert "host" not in last[2]


def test_head_hears_a_node_that_was_late_to_the_meeting_while_it_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose end of the connection is seen cannot be found out any more when that node is gone."""
    monkeypatch.setattr(world.module.sockets, "find_port", lambda store: 29500)
    monkeypatch.setattr(world.module.sockets, "listens", lambda port: True)
    connected = ["10.0.0.2:50000"]
    monkeypatch.setattr(world.module.sockets, "list_peers", lambda port: connected)
    world.enter(0)
    assert world.of("peer") == []
    hello = {"host": "node-b", "ranks": [2], "socket": "10.0.0.2:50000"}
    world.store.set("ddpdoctor/hello/1", json.dumps(hello))
    meeting = world.module._meeting
    meeting.next_beat = 0.0
    world.module.look(None, None, (world.agent(0),))
    assert meeting.peers[1]["visible"] is True
    connected.clear()  # it dies without a word
    meeting.next_beat = 0.0
    world.module.look(None, None, (world.agent(0),))
    within(LONG_S, world.module.leave)
    assert [each["closed"] for each in world.of("peer") if "closed" in each] == [True]


def test_head_takes_what_comes_while_it_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPDOCTOR_NODES_WAIT", str(LONG_S))
    world.enter(0)
    world.store.set("ddpdoctor/hello/1", json.dumps({"host": "node-b", "ranks": [2]}))
    parcel = base64.b64encode(zlib.compress(b"{}")).decode()
    threading.Timer(0.3, world.store.set, ("ddpdoctor/end/1", parcel)).start()
    within(LONG_S, world.module.leave)
    assert (world.folder / "nodes" / "1.json").read_bytes() == b"{}"


def test_nobody_is_waited_for_where_the_agent_ends_with_an_exception(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_NODES_WAIT", "600")
    world.enter(0)
    world.store.set("ddpdoctor/hello/1", json.dumps({"host": "node-b", "ranks": [2]}))
    try:
        raise InterruptedError
    except InterruptedError:
        within(LONG_S, world.module.leave)
    assert world.of("peer")[-1]["told"] is False


@pytest.mark.parametrize("node", [0, 1])
def test_store_that_never_answers_costs_a_limited_time(
    world: World, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    for name in ("SEND_S", "LATE_S"):
        monkeypatch.setattr(world.module, name, 0.2)
    world.store.stuck.clear()
    within(LONG_S, lambda: world.enter(node))
    within(LONG_S, world.module.leave)
    if node:
        assert not world.of("sent")[0]["arrived"]
    else:
        assert [each["where"] for each in world.of("trouble")] == ["gathering"]


@pytest.mark.parametrize("node", [0, 1])
def test_broken_store_is_survived(world: World, node: int) -> None:
    world.enter(node)
    world.store.broken = True
    world.module.note_stopping()
    world.module.note_done()
    within(LONG_S, world.module.leave)
    assert all("Broken pipe" in each["text"] for each in world.of("trouble"))


@pytest.mark.parametrize("value", ["", "[]", "5", '{"ranks": {}, "socket": []}', "{" * 50_000, "\x00"])
def test_hello_of_any_kind_is_survived(world: World, value: str) -> None:
    world.store.set("ddpdoctor/hello/1", value)
    world.store.set("ddpdoctor/head", value)
    world.store.set("ddpdoctor/alive/1", value)
    for node in (0, 1):
        world.enter(node)
        within(LONG_S, world.module.leave)


@pytest.mark.parametrize(
    "parcel",
    ["", "%%%", base64.b64encode(b"no zlib").decode(), base64.b64encode(zlib.compress(b"")).decode()],
)
def test_parcel_that_is_none_is_not_kept(world: World, parcel: str) -> None:
    world.enter(0)
    world.store.set("ddpdoctor/hello/1", json.dumps({"host": "node-b", "ranks": [2]}))
    world.store.set("ddpdoctor/end/1", parcel)
    world.module.leave()
    told = world.of("peer")[-1]
    assert (told["told"], told["whole"]) == (True, False)
    assert not (world.folder / "nodes").exists()


def test_parcel_is_unpacked_to_a_bounded_size(world: World) -> None:
    world.enter(0)
    world.store.set("ddpdoctor/hello/1", json.dumps({"host": "node-b", "ranks": [2]}))
    world.store.set("ddpdoctor/end/1", base64.b64encode(zlib.compress(b" " * (200 << 20))).decode())
    world.module.leave()
    assert (world.folder / "nodes" / "1.json").stat().st_size == world.module.parcels.UNPACKED


def test_supervisor_that_is_gone_or_says_too_much_gives_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_STREAMS", f"{world.folder}/streams|1,2")
    assert world.module.parcels.ask_summary(1) == ""
    with supervisor(world, monkeypatch, b"x" * (world.module.parcels.PARCEL + 70_000)):
        assert world.module.parcels.ask_summary(1) == ""


@pytest.fixture
def sockets(world: World) -> ModuleType:
    return importlib.import_module("ddpdoctor_watch.nodes.sockets")


def test_connections_are_read_from_the_kernel(sockets: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert sockets.listens(port)
        assert sockets.find_connection(port) is None
        assert sockets.judge_connection(port) == "closed"
        with socket.create_connection(("127.0.0.1", port)) as client:
            near = "{}:{}".format(*client.getsockname())
            peer, _ = server.accept()
            with peer:
                assert sockets.find_connection(port) == near
                assert near in sockets.list_peers(port)
                assert sockets.judge_connection(port) == "open"
    assert not sockets.listens(port)


def test_store_within_stores_is_found(sockets: ModuleType) -> None:
    inner = SimpleNamespace(port=29500)
    outer = SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=inner))
    assert sockets.find_port(outer) == 29500
    assert sockets.find_port(SimpleNamespace()) is None
    assert sockets.find_port(SimpleNamespace(port=None)) is None


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("0B40400A:8F3C", "10.64.64.11:36668"),
        ("0000000000000000FFFF00000B40400A:0050", "10.64.64.11:80"),
        ("000080FE00000000FF005450B6AD1DFE:0050", "000080FE00000000FF005450B6AD1DFE:80"),
    ],
)
def test_ends_are_named_alike_in_both_tables(sockets: ModuleType, text: str, end: str) -> None:
    assert sockets._format(text) == end


def test_what_is_long_is_told_in_small_pieces_that_make_the_same(world: World) -> None:
    """Where packets above some size vanish, small ones pass."""
    stillness = importlib.import_module("ddpdoctor_watch.nodes.stillness")
    sizes: list[int] = []

    class Small(Store):
        def set(self, key: str, value: str) -> None:
            sizes.append(len(value))
            super().set(key, value)

    store = Small()
    one = stillness.Stillness(store, 1, [0], False)
    head = stillness.Stillness(store, 0, [1], True)
    for text in ("short", "ab" * 5000, "cd" * 4000, "-"):
        one._put("ddpdoctor/still/1", text)
        assert head._get("ddpdoctor/still/1") == text.encode()
    assert max(sizes) <= stillness.PIECE
    one._put("ddpdoctor/still/1", "ef" * 300_000)
    assert head._get("ddpdoctor/still/1") == b"ef" * 300_000
    assert len([key for key in store.data if key.startswith("ddpdoctor/still/1/1/")]) <= 2 * stillness.PIECES


@pytest.mark.parametrize("value", ["pieces 0 5", "pieces 0 99999999", "pieces x 2", "pieces 1"])
def test_pieces_that_are_not_there_are_nothing(world: World, value: str) -> None:
    stillness = importlib.import_module("ddpdoctor_watch.nodes.stillness")
    store = Store()
    store.set("ddpdoctor/still/1", value)
    head = stillness.Stillness(store, 0, [1], True)
    assert head._get("ddpdoctor/still/1") in (b"-", value.encode())


def test_signs_of_life_have_a_connection_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large may be stuck on the other one."""
    pulse = Store()
    clones = iter([world.store, pulse])
    origin = SimpleNamespace(clone=lambda: next(clones))
    world.module._meeting = None
    world.module.look(None, None, (world.agent(1, store=origin),))
    meeting = world.module._meeting
    assert b"running" in pulse.data["ddpdoctor/alive/1"]
    meeting.busy.acquire()  # something is asked of the store, and never answered
    monkeypatch.setattr(meeting, "next_beat", 0.0)
    pulse.data.clear()
    world.module.look(None, None, (world.agent(1, store=origin),))
    assert "ddpdoctor/alive/1" in pulse.data
    meeting.busy.release()
