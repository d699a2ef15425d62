"""Slurm's host lists."""

from __future__ import annotations

import pytest

from ddpdoctor.gather.nodelist import MAX_HOSTS, expand_counts, expand_hosts, first_host


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-04,7],other", ["node01", "node02", "node03", "node04", "node7", "other"]),
        ("a,b-1,c", ["a", "b-1", "c"]),
        ("rack[1-2]n[1-2]-ib", ["rack1n1-ib", "rack1n2-ib", "rack2n1-ib", "rack2n2-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[3-1]", ["n3-1"]),
        ("", []),
        (" , ", []),
        ("n[1-2", ["n[1-2"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts
    assert first_host(text) == (hosts[0] if hosts else None)


def test_a_mistyped_range_is_cut() -> None:
    assert len(expand_hosts("n[1-999999999]")) == MAX_HOSTS
    assert len(expand_hosts("n[1-9999]m[1-9999]")) == MAX_HOSTS


@pytest.mark.parametrize(
    ("text", "counts"), [("4(x2),3", (4, 4, 3)), ("1", (1,)), ("", ()), ("four", ()), ("2,", (2,))]
)
def test_counts(text: str, counts: tuple[int, ...]) -> None:
    assert expand_counts(text) == counts
