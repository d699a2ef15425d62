"""What torch's Flight Recorder of ranks that stand still adds: the reducer's buckets, and which source told what."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Recorded
from ddpdoctor.judge import EvidenceItem
from ddpdoctor_checks.common.wording import choose_form, count_of
from ddpdoctor_checks.job.hangs.reading import BACKWARD, Reading, name_call, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place

MOST_ITEMS = 6
"""Buckets, and reasons why nothing was told, that a finding names."""


def find_bucket(place: Place) -> Recorded | None:
    """Return the all_reduce in which the backward of a wrapped model waits: the first that is not over.

    None where the rank waits elsewhere, where nothing tells, and where a call of the program's own may be meant.
    """
    call, recorder = place.call, place.stand.recorder
    if call is None or call.op != BACKWARD or recorder is None:
        return None
    first = next((each for each in recorder.open if _may_be_of(each, call.members)), None)
    return first if first is not None and first.op == "all_reduce" and first.own is False else None


def _may_be_of(recorded: Recorded, members: RankSet) -> bool:
    """Whether a collective may be of the group of a wrapper."""
    return not recorded.members or not members or recorded.members == members


def name_wait(places: Sequence[Place]) -> str:
    """Return the call in which ranks wait, and its bucket where they all wait in the same one."""
    name = name_call(places[0].call)
    buckets = {find_bucket(place) for place in places}
    bucket = buckets.pop()
    return name if bucket is None or buckets else f"{name}, in {_name(bucket)}"


def _name(bucket: Recorded) -> str:
    """Return ``bucket all_reduce #11 of 1,081,800 float32 values``."""
    name = f"bucket all_reduce #{bucket.sequence}"
    if bucket.elements is None:
        return name
    return f"{name} of {bucket.elements:,} {bucket.dtype + ' ' if bucket.dtype else ''}values"


def list_recorded(reading: Reading) -> list[EvidenceItem]:
    """Return what the recorders told, of which ranks they told nothing, and why."""
    living = [place for place in reading.places if place.kind != "gone"]
    told = [place for place in living if _has_told(place)]
    if not any(place.stand.recorder for place in living):
        return []
    items = []
    if told:
        items.append(
            _item(
                (
                    "Flight Recorder shows the collectives issued from C++ (e.g. DDP buckets) and which have "
                    "completed"
                ),
                told,
            )
        )
    return [*items, *_list_buckets(told)[:MOST_ITEMS], *_list_problems(living)[:MOST_ITEMS]]


def _item(text: str, places: Sequence[Place]) -> EvidenceItem:
    return EvidenceItem("recorder", text, ranks_of(places))


def _has_told(place: Place) -> bool:
    recorder = place.stand.recorder
    return recorder is not None and recorder.problem is None


def _list_buckets(places: Sequence[Place]) -> list[EvidenceItem]:
    """Return the buckets in which ranks wait."""
    sides: dict[tuple[Recorded, int], list[Place]] = {}
    for place in places:
        bucket, recorder = find_bucket(place), place.stand.recorder
        if bucket is not None and recorder is not None:
            sides.setdefault((bucket, len(recorder.open) - 1), []).append(place)
    items = []
    for (bucket, more), side in sides.items():
        verb = choose_form(len(side), "waits", "wait")
        after = (
            f"; {count_of(more, 'collective')} after it {choose_form(more, 'has', 'have')} not completed "
            "either"
        )
        text = f"{verb} in the reducer's {_name(bucket)} ({bucket.state})"
        items.append(_item(text + (after if more else ""), side))
    return items


def _list_problems(places: Sequence[Place]) -> list[EvidenceItem]:
    """Return of which ranks the recorders told nothing, and why."""
    sides: dict[str, list[Place]] = {}
    for place in places:
        recorder = place.stand.recorder
        why = recorder.problem if recorder is not None else "it was not queried, on another node"
        if why is not None:
            sides.setdefault(why, []).append(place)
    return [_item(f"no Flight Recorder data: {why}", side) for why, side in sides.items()]
