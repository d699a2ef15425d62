"""Collectives that are issued in the order of a set. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint
from tests.lint.reading import marked, rules_in_head

LOOP = """
class Tracker:
    def __init__(self, names):
        self.names = {made}
        self.sums = {{name: torch.zeros(()) for name in names}}
    def sync(self):
        for name in {over}:
            {body}  # HERE
dist.init_process_group("gloo")
Tracker(load_names()).sync()
dist.destroy_process_group()
"""
SENT = "dist.all_reduce(self.sums[name])"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("made", "over", "body"),
    [
        ("frozenset(names)", "self.names", SENT),
        ("{'loss', 'accuracy'}", "list(self.names)", SENT),
        ("names", "{'loss'} | set(self.names)", "value = self.sums[name]; dist.all_reduce(value)"),
        ("{n.lower() for n in names}", "enumerate(self.names)", "dist.all_reduce(self.sums[name[1]])"),
    ],
)
def test_a_loop_over_a_set_reduces_each_element(made: str, over: str, body: str) -> None:
    source = LOOP.format(made=made, over=over, body=body)
    assert rules_in_head(source) == [("set-order", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("made", "over", "body"),
    [
        ("frozenset(names)", "sorted(self.names)", SENT),
        ("sorted(set(names))", "self.names", SENT),
        ("list(names)", "self.names", SENT),
        ("{1, 2, 3}", "self.names", SENT),
        ("set(range(4))", "self.names", SENT),
        ("set(names)", "self.names", "dist.barrier()"),
        ("set(names)", "self.names", "print(self.sums[name])"),
    ],
)
def test_an_order_that_all_processes_have_is_none(made: str, over: str, body: str) -> None:
    assert rules_in_head(LOOP.format(made=made, over=over, body=body)) == []


@pytest.mark.right
def test_hashes_that_are_the_same_in_all_processes_are_no_mistake() -> None:
    source = LOOP.format(made="set(names)", over="self.names", body=SENT)
    assert rules_in_head("# PYTHONHASHSEED=0 torchrun train.py" + source) == []


def test_the_fix_sorts_the_set() -> None:
    (found,) = lint(
        """
        names = {"loss", "accuracy"}
        dist.init_process_group("gloo")
        for name in names:
            dist.all_reduce(sums[name])
        dist.destroy_process_group()
        """
    )
    assert (found.code, found.severity) == ("COL004", "warning")
    assert found.fix[0].code == "for name in sorted(names):\n    dist.all_reduce(sums[name])"
