"""Collectives that ranks of one communicator gave NCCL in different forms, as their logs list them.

Each process lists only its own calls; only all of them together show that two do not match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.aftermath.communicators import KEPT, Call, Communicator
from ddpdoctor.aftermath.parts import Log
from ddpdoctor.evidence.job import TextMatch
from ddpdoctor.evidence.texts.matching import match_line

DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
"""Names of NCCL's numbers (nccl.h, ncclDataType_t)."""
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
"""Names of NCCL's numbers (nccl.h, ncclRedOp_t)."""
MOST_TOLD = 64
"""Ranks that are compared in words."""

Said = tuple[str, int, Call]
"""Log, line and call."""


def find_unequal_calls(logs: Sequence[Log]) -> list[TextMatch]:
    """Return texts on the first call of a communicator that its ranks issued in different forms; none usually."""
    for ends in _groups(logs):
        found = list(_compare(ends))
        if found:
            return found
    return []


def _groups(logs: Sequence[Log]) -> Iterator[dict[int, tuple[str, Communicator]]]:
    """Yield the ends of each communicator by rank, where it is certain which ends belong together.

    Without NCCL's own id those do that have as many ranks, where each process has one such communicator only.
    """
    named: dict[str, list[tuple[str, Communicator]]] = {}
    unnamed: dict[int, list[tuple[str, Communicator]]] = {}
    for log in logs:
        for end in log.facts.communicators.values():
            if end.rank is not None and end.id is not None:
                named.setdefault(end.id, []).append((log.name, end))
            elif end.rank is not None:
                unnamed.setdefault(end.size, []).append((log.name, end))
    for members in (*named.values(), *unnamed.values()):
        ends = {end.rank: (name, end) for name, end in members if end.rank is not None}
        processes = {(end.host, end.pid) for _, end in members}
        if len(ends) == len(members) == len(processes) and not any(end.point_to_point for _, end in members):
            yield ends


def _compare(ends: dict[int, tuple[str, Communicator]]) -> Iterator[TextMatch]:
    listed: dict[int, dict[int, list[Said]]] = {}
    for rank, (name, end) in ends.items():
        # Of the oldest number that is kept a part may be gone.
        lost = end.calls[0][0] if len(end.calls) == KEPT else None
        for number, line, call in end.calls:
            if number != lost:
                listed.setdefault(number, {}).setdefault(rank, []).append((name, line, call))
    for number in sorted(listed):
        for place in range(max(len(calls) for calls in listed[number].values())):
            calls = {rank: said[place] for rank, said in listed[number].items() if place < len(said)}
            if len({call for _, _, call in calls.values()}) > 1:
                yield from _tell(number, calls)
                return


def _tell(number: int, calls: dict[int, Said]) -> Iterator[TextMatch]:
    """Yield a text for each pair of ranks: those that differ from most beside all others."""
    usual = Counter(call for _, _, call in calls.values()).most_common(1)[0][0]
    odd = sorted(rank for rank, (_, _, call) in calls.items() if call != usual)
    rest = sorted(rank for rank in calls if rank not in odd)
    pairs = [(odd[0], other) for other in rest] + [(rank, rest[0]) for rank in odd[1:]]
    for rank, other in pairs[:MOST_TOLD]:
        own, others = _name(number, calls[rank][2]), _name(number, calls[other][2])
        file, line, _ = calls[rank]
        words = f"Calls differ: rank {rank} issued {own}; rank {other} issued {others}"
        yield from _match(words, file, line)


def _match(words: str, file: str, line: int) -> Iterable[TextMatch]:
    for entry, groups in match_line(words):
        yield TextMatch(entry=entry, text=words, groups=groups, stream="log", file=file, line=line)


def _name(number: int, call: Call) -> str:
    dtype = _choose(DTYPES, call.dtype, "datatype")
    root = "" if call.root is None else f" with root {call.root}"
    reduction = "" if call.reduction is None else f" ({_choose(REDUCTIONS, call.reduction, 'reduction')})"
    return f"{call.op} #{number} of {call.count} {dtype}{root}{reduction}"


def _choose(names: Sequence[str], number: int, kind: str) -> str:
    return names[number] if number < len(names) else f"{kind} {number}"
