"""Lines of a log that are passed over by their shape hold nothing that a log is searched for."""

from __future__ import annotations

import random

import pytest

from ddpdoctor.aftermath import logs
from ddpdoctor.aftermath.logs import TRIGGERS, LogFacts, LogReader
from ddpdoctor.aftermath.notable import SEARCHED
from ddpdoctor.aftermath.shapes import PAUSE, ShapeReader
from ddpdoctor.evidence.texts.matching import ENTRIES, list_gates

STEP = "[rank{r}]: step {i} | loss {x:.4f} | lr 1.9e-05 | grad {y:x} | mem 61.2GiB"
TROUBLE = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/job/train.py", line 12, in main\n'
    "[rank3]:     loss = model(batch)\n"
    "[rank3]: KeyError: 'label_9917'",
    "node-a:4711:4801 [0] init.cc:312 NCCL WARN Cuda failure 'out of memory'",
    "node-a:4711:4801 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/x\n"
    "node-a:4711:4801 [0] NCCL INFO graph/xml.cc:469 -> 2",
    "ncclSystemError: System call failed.\nLast error:\nError while creating shared memory segment /dev/shm/n (size 9)",
    "worker-1 exited with code 137",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0",
)


def make_log(seed: int, trouble: tuple[str, ...]) -> bytes:
    """Return steps of eight ranks, with trouble in between."""
    luck = random.Random(seed)
    lines = [STEP.format(r=i % 8, i=i // 8, x=luck.random(), y=luck.getrandbits(40)) for i in range(20000)]
    for text in trouble:
        lines.insert(luck.randrange(len(lines)), text)
    lines.append("worker-2 exited with code 0")
    return ("\n".join(lines) + "\n").encode()


def read(data: bytes, size: int, *, whole: bool = False) -> LogFacts:
    reader = LogReader("train.log")
    if whole:
        reader._shapes._pause = 1 << 30
    position = 0
    while position < len(data):
        cut = data.find(b"\n", position + size) + 1 or len(data)
        reader.take(data[position:cut])
        position = cut
    return reader.finish()


@pytest.mark.parametrize("size", [1 << 13, 1 << 17, 1 << 22])
def test_a_log_says_the_same_whether_lines_are_passed_over_or_not(size: int) -> None:
    for seed in range(4):
        data = make_log(seed, TROUBLE)
        fast, slow = read(data, size), read(data, size, whole=True)
        assert (fast.lines, fast.bytes) == (slow.lines, slow.bytes)
        assert [each.match for each in fast.texts] == [each.match for each in slow.texts]
        assert fast.texts
        assert fast.told == slow.told
        assert fast.told
        assert fast.notable == slow.notable


def test_most_of_a_long_log_is_not_read_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0

    def count(data: bytes, note: object) -> list[object]:
        nonlocal seen
        seen += len(data)
        return []

    monkeypatch.setattr(logs, "scan_chunk", count)
    data = make_log(1, TROUBLE)
    read(data, 1 << 17)
    assert 0 < seen < len(data) / 4


def test_parts_stand_where_they_say() -> None:
    reader = ShapeReader(TRIGGERS)
    fine = b"".join(b"step %d loss %d.1 id %x\n" % (i, i, i * 7919) for i in range(2000))
    assert reader.find(fine) == []
    odd = fine + b"node-a:1:2 [0] a.cc:1 NCCL WARN no more\n" + fine
    parts = reader.find(odd)
    assert parts is not None
    assert any(b"NCCL WARN" in odd[start:end] for _, start, end in parts)
    assert all(odd.count(b"\n", 0, start) == first for first, start, _ in parts)
    assert all(start == 0 or odd[start - 1 : start] == b"\n" for _, start, _ in parts)


@pytest.mark.parametrize("text", [*list_gates(), *SEARCHED, *TRIGGERS])
def test_whatever_is_searched_for_is_found_by_its_shape(text: bytes) -> None:
    data = b"step 1 loss 2.1\n" * 200 + b"at 12: " + text + b" 7\n" + b"step 2 loss 2.0\n" * 200
    parts = ShapeReader(TRIGGERS).find(data)
    assert parts is None or any(text in data[start:end] for _, start, end in parts)


def test_every_entry_has_a_gate() -> None:
    gates = list_gates()
    assert all(
        any(gate in entry.example.encode() for gate in gates) for entry in ENTRIES if not entry.templates
    )


def test_a_log_of_prose_is_read_whole() -> None:
    luck = random.Random(2)
    data = b"\n".join(bytes(luck.choices(b"ghijklmnopqrstuvwxyz ", k=90)) for _ in range(2000)) + b"\n"
    reader = ShapeReader(TRIGGERS)
    assert [reader.find(data) for _ in range(PAUSE + 1)] == [None] * (PAUSE + 1)
