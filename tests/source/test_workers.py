"""Several processes say the same as one; where one of them dies, the work is done all the same."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.files.workers import count_workers, no_collection, share_work
from ddpdoctor.source.gather import judge_scripts
from tests.lint.judging import RULES

HELPER = b"import torch.distributed as dist\ndef total(x):\n    dist.all_reduce(x)\n"
WRONG = (
    b"import torch.distributed as dist\nfrom helper import total\nif dist.get_rank() == 0:\n    total(1)\n"
)


def test_parts_that_are_judged_apart_are_judged_alike() -> None:
    scripts = [parse_script(HELPER, "helper.py"), parse_script(b"if torch\n", "broken.py")]
    scripts += [parse_script(b"\n" * number + WRONG, f"train{number}.py") for number in range(9)]
    alone, together = judge_scripts(scripts, RULES), judge_scripts(scripts, RULES, workers=2)
    assert alone == together
    assert [len(row.uneven) for row in together] == [0, 0, *[1] * 9]


def test_work_of_a_process_that_dies_is_done_here() -> None:
    here = os.getpid()

    def work(number: int) -> int:
        if os.getpid() != here:
            os._exit(9)
        return number * 2

    assert share_work(work, int, [1, 1, 1], 2) == [0, 2, 4]


def test_what_work_raises_reaches_the_caller() -> None:
    def work(number: int) -> int:
        raise KeyError(number)

    with pytest.raises(KeyError):
        share_work(work, int, [1, 1], 2)


def test_each_process_gets_much_the_same() -> None:
    here = os.getpid()

    def work(number: int) -> str:
        return "here" if os.getpid() == here else "there"

    assert share_work(work, str, [9, 4, 3, 2], 2) == ["here", "there", "there", "there"]
    assert share_work(work, str, [1, 1], 1) == ["here", "here"]


def test_processes_with_threads_are_not_forked() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert count_workers() == 1
    finally:
        done.set()
        thread.join()


def test_collector_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("own_s", [0, 60], ids=["while it waits for them", "while it works itself"])
def test_interrupt_ends_the_children_too(own_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here, fork, children = os.getpid(), os.fork, []

    def start() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", start)

    def work(number: int) -> int:
        if os.getpid() != here:
            if number == 1:
                time.sleep(1)  # it waits or works by then: in a hook of fork an interrupt would be lost
                os.kill(here, signal.SIGINT)
            time.sleep(60)
        time.sleep(own_s)
        return number

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        share_work(work, int, [3, 2, 1], 3)
    assert time.monotonic() - began < 30
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
