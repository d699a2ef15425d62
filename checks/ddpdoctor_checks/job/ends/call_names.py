"""Calls of two ranks as torch's comparison of collectives, or NCCL's list of calls, names them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddpdoctor.evidence import RankSet
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group


def find_odd(group: Group, diagnosis: Diagnosis) -> RankSet:
    """Return the ranks whose call differs from that of more than half of the world; none where that is not known."""
    calls: dict[str, set[int]] = {}
    for failure in group.failures:
        groups = failure.groups
        for rank, call in (("rank", "own"), ("other", "others")):
            if groups.get(rank, "").isdigit() and call in groups:
                calls.setdefault(_name(groups[call]), set()).add(int(groups[rank]))
    most = max(calls.values(), key=len, default=set())
    if 2 * len(most) <= len(diagnosis.world):
        return RankSet()
    return RankSet(rank for ranks in calls.values() if ranks is not most for rank in ranks - most)


_FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d{1,12}), )?OpType=(?P<op>\w{1,40})"
    r"(?:, TensorShape=(?P<shape>\[[\d, ]{0,200}\]))?(?:, TensorDtypes=(?P<type>\w{1,40}))?"
)


def compare_calls(groups: Mapping[str, str]) -> str:
    """Return ``rank 1 runs ALLREDUCE #3 of [10] Float, rank 2 runs BROADCAST #3 of [10] Float``."""
    return f"rank {groups['rank']} runs {_name(groups['own'])}, rank {groups['other']} runs {_name(groups['others'])}"


def _name(call: str) -> str:
    """Return a call of torch's comparison without what hardly ever differs; as it is where its form is another."""
    found = _FINGERPRINT.search(call)
    if found is None:
        return call
    number, shape, kind = found["number"], found["shape"], found["type"]
    tensor = " ".join(part for part in (shape, kind) if part)
    return f"{found['op']}{f' #{number}' if number else ''}{f' of {tensor}' if tensor else ''}"
