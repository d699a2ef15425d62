"""Xids: each number means one thing, in logs as on a node."""

from __future__ import annotations

from itertools import combinations

import pytest

from ddpdoctor.evidence.texts.matching import CAUSE, CONSEQUENCE, NOISE, find_entry, match_line
from ddpdoctor.facts.xids import XIDS, XidKind, find_kind, write_pattern


def test_no_number_has_two_kinds() -> None:
    for (one, first), (other, second) in combinations(XIDS.items(), 2):
        assert not first & second, (one, other)


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="'devices' is no kind of Xid: device, restart"):
        write_pattern("device devices")


def test_a_number_outside_the_table_has_no_kind() -> None:
    assert find_kind(9999) is None


SAID: dict[XidKind, tuple[str, str | None]] = {
    "device": (CAUSE, "BKD010"),
    "restart": (CAUSE, "BKD010"),
    "program": (CAUSE, "ERR007"),
    "follows": (CONSEQUENCE, None),
    "recorded": (NOISE, None),
    "harmless": (NOISE, None),
}


@pytest.mark.parametrize("kind", XIDS)
def test_a_line_of_the_kernel_is_judged_by_the_kind_of_its_number(kind: XidKind) -> None:
    for number in XIDS[kind]:
        [(id, fields)] = match_line(f"kernel: NVRM: Xid (PCI:0000:5d:00): {number}, pid=4711, name=python")
        assert fields["xid"] == str(number)
        entry = find_entry(id)
        assert (entry.role, entry.code) == SAID[kind], number
