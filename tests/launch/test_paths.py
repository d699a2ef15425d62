"""Which broken paths between nodes rule out a world."""

from __future__ import annotations

from ddpdoctor.evidence import Link
from ddpdoctor.launch.meeting.node_paths import find_broken_path


def link(source: int, target: int, ok: bool, kind: str = "ephemeral") -> Link:
    return Link(source, target, kind, ok)


def test_a_pair_that_is_closed_both_ways_rules_it_out() -> None:
    broken = find_broken_path([link(0, 1, False), link(1, 0, False), link(0, 2, True), link(2, 0, True)])
    assert broken == "nodes 0 and 1 cannot reach each other on ephemeral ports"


def test_one_way_may_do() -> None:
    assert find_broken_path([link(0, 1, False), link(1, 0, True)]) is None


def test_other_kinds_do_not_count() -> None:
    assert find_broken_path([link(0, 1, False, "large"), link(1, 0, False, "rendezvous")]) is None


def test_large_packets_that_vanish_rule_it_out() -> None:
    lost = Link(0, 1, "large", False, bytes_passed=1024, bytes_failed=8192)
    assert find_broken_path([lost]) == "8192 bytes at once do not get through from node 0 to node 1"


def test_a_way_that_was_not_tried_is_no_way() -> None:
    assert find_broken_path([link(0, 1, False)]) is not None
