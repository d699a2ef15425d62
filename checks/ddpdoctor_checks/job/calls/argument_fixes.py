"""What to do where ranks issue a collective with arguments that do not match: that depends on what differs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ddpdoctor.evidence import Frame
from ddpdoctor.judge import Fix

ORDER = Fix(
    "issue the same collectives, in the same order, with the same shapes and dtypes on every rank; sort what "
    "is iterated over",
    code="for name in sorted(metrics):\n    dist.all_reduce(metrics[name])",
)
BY_ARGUMENT = {
    "dtype": Fix(
        "give the tensor the same dtype on every rank: torch.tensor makes int64 of whole numbers and float32 of "
        "others",
        code="parts = torch.tensor([hits, total], dtype=torch.float32)",
    ),
    "shape": Fix(
        "give the tensor the same shape on every rank: gather the sizes first and pad to the largest",
        code="sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]\n"
        "dist.all_gather(sizes, size)\nrows = torch.nn.functional.pad(rows, (0, 0, 0, max(sizes) - len(rows)))",
    ),
    "peer": Fix("pass the same root (src= or dst=, a rank of the whole job) on every rank"),
    "reduction": Fix("pass the same op= on every rank"),
}
"""Where nothing else differs."""


def fix_mismatch(
    differs: Collection[str], lines: Iterable[Frame | None], around: Iterable[Frame]
) -> list[Fix]:
    """Return what to do, the likeliest first.

    Args:
        differs: what differs between the calls of two ranks: op, shape, dtype, reduction, peer.
        lines: the user's line of each call; two lines are two calls, of which the order differs.
        around: what decides whether the line runs: a loop may come to the same tensors in another order.
    """
    places = {(each.file, each.line) if each is not None else None for each in lines}
    place = places.pop() if len(places) == 1 else None
    only = next(iter(differs)) if len(differs) == 1 else ""
    if place is None or only not in BY_ARGUMENT:
        return [ORDER]
    in_loop = any(
        each.function in ("for", "while") and each.file == place[0] and each.line < place[1]
        for each in around
    )
    return [BY_ARGUMENT[only], *([ORDER] if in_loop else [])]
