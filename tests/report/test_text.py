from __future__ import annotations

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.report.words import (
    clean,
    clip,
    count,
    fold_hosts,
    format_bandwidth,
    format_bytes,
    format_ranks,
    format_seconds,
    join_words,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é ✓", "plain é ✓"),
        ("a\nb\tc", "a\nb\tc"),
        ("a\x00\x1b[0m\x7f", "a␀␛[0m␡"),
        ("host\u202egnp", "host\\u202egnp"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\u0085"),
        ("\ud800", "\\ud800"),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert clean(text) == shown
    clean(text).encode("utf-8")


@pytest.mark.parametrize(
    ("ranks", "size", "words"),
    [
        ([], None, "no rank"),
        ([3], None, "rank 3"),
        ([0], 1, "rank 0"),
        ([0, 1, 2, 4], None, "ranks 0-2, 4"),
        (range(8), 8, "all 8 ranks"),
        (range(8), 9, "ranks 0-7"),
        (range(0, 16384, 8), 16384, "ranks 0, 8, 16 … 16376 (1 of every 8, 2,048 in all)"),
        (
            [n for n in range(800) if n % 8 < 2],
            800,
            "ranks 0-1, 8-9, 16-17 … 792-793 (2 of every 8, 200 in all)",
        ),
    ],
)
def test_ranks_are_folded(ranks: list[int], size: int | None, words: str) -> None:
    assert format_ranks(RankSet(ranks), size) == words


def test_irregular_ranks_state_how_many_are_not_written() -> None:
    words = format_ranks(RankSet(n * n for n in range(2, 40)))
    assert words.startswith("ranks 4, 9, 16,")
    assert words.endswith("… and 26 more")


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (["a", "b"], "a, b"),
        ([f"node-{n:04d}" for n in range(2048)], "node-[0000-2047]"),
        ([f"n{n}.dc" for n in (1, 2, 3, 5, 6)], "n[1-3,5-6].dc"),
        (["login", "n1", "n2", "n3", "gw7"], "n[1-3], gw7, login"),
    ],
)
def test_hosts_are_folded(hosts: list[str], words: str) -> None:
    assert fold_hosts(hosts) == words


def test_many_unlike_hosts_state_how_many_there_are() -> None:
    words = fold_hosts([f"{chr(97 + n)}x" for n in range(20)])
    assert words.endswith("(20 hosts in all)")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (float("nan"), "unknown"),
        (0.0, "0 s"),
        (61e-6, "61 µs"),
        (4e-7, "0.4 µs"),
        (0.0032, "3.2 ms"),
        (2.7182, "2.72 s"),
        (724, "12 m 04 s"),
        (7325, "2 h 02 m"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert format_seconds(seconds) == words


def test_sizes_and_speeds() -> None:
    assert [format_bytes(n) for n in (None, 8, 1024, 1536, 64 << 20, 768 << 30)] == [
        "unknown",
        "8 B",
        "1 KiB",
        "1.5 KiB",
        "64 MiB",
        "768 GiB",
    ]
    assert [format_bandwidth(v) for v in (None, float("inf"), 1.214, 0.0042, 210.4, 0.0)] == [
        "unknown",
        "unknown",
        "1.21 GB/s",
        "4.2 MB/s",
        "210 GB/s",
        "0 GB/s",
    ]


def test_words() -> None:
    assert count(1, "rank") == "1 rank"
    assert count(16384, "rank") == "16,384 ranks"
    assert count(2, "process", "processes") == "2 processes"
    assert join_words(["a", "b", "c"]) == "a, b and c"
    assert join_words(["a"]) == "a"
    assert clip("abcdef", 3) == "abc … (3 more characters)"
    assert clip("abc", 3) == "abc"
