"""What the checks of stages share: where ranks are, also silent ones, and what a dead one said last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.testing import make_world
from ddpdoctor_checks.common.frames import read_fatal_frames
from ddpdoctor_checks.common.stage_evidence import find_last_words, hosts_of_ranks


@pytest.fixture
def half_silent() -> Evidence:
    """Two nodes with two ranks each, of which those of node 1 said nothing."""
    world = make_world(2, 2)
    return replace(world, ranks=tuple(rank for rank in world.ranks if rank.node == 0))


def test_hosts_come_in_the_order_of_ranks_and_once() -> None:
    assert hosts_of_ranks(make_world(2, 2), RankSet([3, 0, 1])) == ("node-0", "node-1")
    assert hosts_of_ranks(make_world(2, 2), RankSet()) == ()


def test_silent_ranks_are_where_the_launch_puts_them(half_silent: Evidence) -> None:
    assert hosts_of_ranks(half_silent, RankSet([1, 3])) == ("node-0", "node-1")


def test_silent_ranks_of_an_unknown_node_are_nowhere(half_silent: Evidence) -> None:
    alone = replace(half_silent, nodes=half_silent.nodes[:1])
    assert hosts_of_ranks(alone, RankSet([3])) == ()


def test_silent_ranks_are_not_guessed_where_nodes_have_different_numbers(half_silent: Evidence) -> None:
    uneven = replace(half_silent, launch=replace(half_silent.launch, world_size=5))
    assert hosts_of_ranks(uneven, RankSet([3])) == ()


WARNING = "/v/c10d_logger.py:83: FutureWarning: `x` is deprecated.\n  return func(*args)\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WARNING, ""),
        ("", ""),
        (WARNING + "terminate called without an active exception\n" + WARNING, "terminate called without"),
        ("[rank0]:[W1121 01:45:07.3 reducer.cpp:1529] Warning: slow (function f)\n", ""),
        ("[W1121 01:45:07.3 socket.cpp:1] errno 97\nRuntimeError: boom\n", "RuntimeError: boom"),
        (
            'Fatal Python error: Aborted\n\nCurrent thread 0x1:\n  File "a.py", line 1 in f\n',
            "Fatal Python error",
        ),
    ],
)
def test_last_words_are_the_line_that_tells_of_the_end(text: str, words: str) -> None:
    found = find_last_words(text)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_last_words_are_short() -> None:
    assert len(find_last_words("x" * 4000)) < 250


def test_frames_of_the_thread_that_crashed_are_read() -> None:
    text = (
        'Fatal Python error: Aborted\n\nThread 0x2 (most recent call first):\n  File "other.py", line 1 in wait\n\n'
        'Current thread 0x1 (most recent call first):\n  File "a.py", line 7 in f\n  File "b.py", line 9 in g\n'
    )
    assert [(each.file, each.line, each.function) for each in read_fatal_frames(text)] == [
        ("a.py", 7, "f"),
        ("b.py", 9, "g"),
    ]
    assert read_fatal_frames("RuntimeError: boom") == ()
