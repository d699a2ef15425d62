"""The lines of the source that a job's end points to: the culprit's, its callers', the victims'."""

from __future__ import annotations

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.judge import Where
from ddpdoctor_checks.common.frames import MOST_PLACES, user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure
from ddpdoctor_checks.job.ends.clauses import Clause

BETWEEN = frozenset({"COL003", "DDP009", "ENV002", "ENV003"})
"""Codes of what does not match between ranks: who complains of it is no less at fault than who does not."""


def list_places(
    diagnosis: Diagnosis, group: Group, clause: Clause, ranks: RankSet, cause: bool
) -> tuple[Where, ...]:
    """Culprit's innermost line first, then its callers, other lines of the group, then where victims stood."""
    hosts = {diagnosis.host(each.view) for each in group.failures}
    host = next(iter(hosts)) if diagnosis.context.nodes > 1 and len(hosts) == 1 else None
    said_by_victims = clause.ranks is not None and group.first.rank not in ranks
    role = "victim" if said_by_victims else "noticed" if clause.places else "culprit"
    own = ranks if role == "culprit" else group.ranks
    shown = user_frames(group.first.frames)[: 1 if clause.places else MOST_PLACES]
    places = list(clause.places)
    told = {(place.file, place.line) for place in places}
    places += [
        in_frame(frame, own, role if not n else "caller", host if not n else None)
        for n, frame in enumerate(shown)
        if (frame.file, frame.line) not in told
    ]
    other: dict[tuple[str, int], list[Failure]] = {}
    for each in group.failures:
        line = each.line
        if line is not None and shown and (line.file, line.line) != (shown[0].file, shown[0].line):
            other.setdefault((line.file, line.line), []).append(each)
    for members in list(other.values())[:3]:
        line = members[0].line
        if line is not None and (line.file, line.line) not in told:
            members_ranks = RankSet(each.rank for each in members if each.rank is not None)
            places.append(in_frame(line, members_ranks, role))
    named = {(place.file, place.line): place.ranks for place in places}
    victims = (
        _victim_places(diagnosis) if cause and clause.victims is None and group.code not in BETWEEN else []
    )
    return (
        *places,
        *(each for each in victims if each.ranks.minus(named.get((each.file, each.line), RankSet()))),
    )


def _victim_places(diagnosis: Diagnosis) -> list[Where]:
    found: dict[tuple[str, int], tuple[Frame, list[int]]] = {}
    for each in diagnosis.victims:
        line = each.line
        if line is not None and each.rank is not None:
            found.setdefault((line.file, line.line), (line, []))[1].append(each.rank)
    largest = sorted(found.values(), key=lambda item: -len(item[1]))[:3]
    return [in_frame(frame, RankSet(ranks), "victim") for frame, ranks in largest]
