"""Running totals that are summed over the ranks in each round of the loop that adds to them."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PROGRAM = """\
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
{before}
for x, y in loader:
    right = (model(x).argmax(1) == y).sum()
    {body}
{after}
dist.destroy_process_group()
"""
ADDS = "total += right\n    "
SUMS = "dist.all_reduce(total)"


def code(body: str, before: str = "total = torch.zeros(1)", after: str = "print(total)") -> str:
    return PROGRAM.format(before=before, body=body, after=after)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        code(f"{ADDS}{SUMS}  # here"),
        code(f"{ADDS}dist.all_reduce(total, op=dist.ReduceOp.SUM)  # here"),
        code(f"{ADDS}with torch.no_grad():\n        {SUMS}  # here"),
        code(f"if right > 0:\n        {ADDS}{SUMS}  # here"),
        code(
            "meter.total += right\n    dist.all_reduce(meter.total)  # here",
            before="meter = Meter()",
            after="print(meter.total)",
        ),
    ],
)
def test_total_is_summed_again(text: str) -> None:
    findings = [each for each in lint(text) if each.code == "NUM009"]
    assert [each.severity for each in findings] == ["warning"]
    assert lines_of(findings, "NUM009") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        code(ADDS, after=SUMS),
        code(f"{ADDS}{SUMS}", after="pass"),
        code(f"dist.all_reduce(right)\n    {ADDS}"),
        code(f"total = torch.zeros(1)\n    {ADDS}{SUMS}"),
        code(f"{ADDS}{SUMS}\n    total.zero_()"),
        code(f"{ADDS}{SUMS}\n    total /= dist.get_world_size()"),
        code(f"{ADDS}{SUMS}\n    total.div_(2)"),
        code(f"{ADDS}dist.all_reduce(total, op=dist.ReduceOp.AVG)"),
        code(f"{ADDS}dist.all_reduce(total, dist.ReduceOp.MAX)"),
        code(f"{ADDS}if done:\n        {SUMS}"),
        code("for total in totals:\n        total += right\n        dist.all_reduce(total)"),
    ],
)
def test_total_is_summed_once_or_begins_anew(text: str) -> None:
    assert "NUM009" not in {each.code for each in lint(text)}
