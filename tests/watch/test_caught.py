"""Which exceptions that libraries caught in ranks ended the job: those that another process reports."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.watch.readers.caught import Caught, choose_reported

BAD = ["/home/me/train.py", 14, "train"]
RAY = [["/x/site-packages/ray/train/util.py", 246, "construct"]]
QUOTE = """Training failed due to worker errors:
[Rank 1 Error Snippet]:
Traceback (most recent call last):
  File "/home/me/rays.py", line 13, in loop
    train(config["mode"])
  File "/home/me/train.py", line 14, in train
    raise ValueError("bad batch")
ValueError: bad batch
"""


def make(pid: int, kind: str = "ValueError", place: list[Any] | None = None, caller: Any = None) -> Caught:
    frames = [place or BAD, ["/home/me/rays.py", 13, "loop"]]
    return Caught(pid, {"type": kind, "message": "bad batch", "frames": frames, "caller": caller or RAY})


def report(message: str = QUOTE, **more: object) -> dict[str, Any]:
    return {"type": "ray.train.WorkerGroupError", "message": message, "frames": [], "chain": [], **more}


def test_what_another_process_quotes_is_taken() -> None:
    assert [each.pid for each in choose_reported([make(5)], [report()])] == [5]


@pytest.mark.parametrize(
    "caught",
    [make(5, "KeyError"), make(5, place=["/home/me/train.py", 15, "train"])],
    ids=["other type", "other line"],
)
def test_what_was_dealt_with_is_not(caught: Caught) -> None:
    assert choose_reported([caught], [report()]) == []


@pytest.mark.parametrize("reports", [[], [report("ValueError: bad batch")]], ids=["none", "no traceback"])
def test_without_a_report_of_it_nothing_is_taken(reports: list[dict[str, Any]]) -> None:
    assert choose_reported([make(5)], reports) == []


def test_a_link_of_the_chain_with_its_frames_counts() -> None:
    link = {"type": "ValueError", "message": "bad batch", "frames": [BAD]}
    assert len(choose_reported([make(5)], [report("", chain=[link])])) == 1


def test_what_the_same_code_caught_last_in_other_ranks_comes_along() -> None:
    lost = make(6, "RuntimeError", ["/x/torch/distributed_c10d.py", 9, "barrier"])
    logged = make(7, "RuntimeError", ["/home/me/a.py", 3, "f"], [["/home/me/a.py", 8, "f"]])
    early = make(6, "KeyError", ["/home/me/a.py", 2, "g"])
    chosen = choose_reported([early, lost, make(5), logged], [report()])
    assert {each.pid: each.event["type"] for each in chosen} == {5: "ValueError", 6: "RuntimeError"}
