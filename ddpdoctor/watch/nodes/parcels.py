"""What was seen on one node as a parcel for the head: small enough for the agents to carry it."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpdoctor.evidence.job import PHASE

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.evidence.job import Milestone
    from ddpdoctor.evidence.standstill import Standstill

PARCEL_BYTES = 700_000
"""Most bytes of a parcel, compressed: the agent takes 1 MiB."""
UNPACKED_BYTES = 15 << 20
WORDS = 2000
"""Characters of a process's last words that a sum has when it must be made smaller."""
LOOKS = 3
"""Looks at a standstill of which such a sum has all."""


def pack(evidence: Evidence) -> bytes:
    """Return evidence compressed, made smaller step by step until it fits: failures last."""
    data = b""
    for shrink in (
        lambda each: each,
        _drop_words,
        _drop_connections,
        _drop_bystanders,
        _drop_texts,
        _drop_training,
        _drop_details,
    ):
        evidence = shrink(evidence)
        text = json.dumps(evidence.to_dict()).encode()
        data = zlib.compress(text, 6)
        if len(data) <= PARCEL_BYTES and len(text) <= UNPACKED_BYTES:
            return data
    return b""


def _drop_words(evidence: Evidence) -> Evidence:
    processes = tuple(
        dataclasses.replace(each, last_words=each.last_words[-WORDS:] if each.last_words else None)
        for each in evidence.processes
    )
    return dataclasses.replace(evidence, processes=processes)


def _drop_connections(evidence: Evidence) -> Evidence:
    """Leave the connections of ranks to the newest looks: only the last one is judged."""
    newest = _choose_newest(evidence.standstills)
    looks = tuple(
        look if look in newest else dataclasses.replace(look, network=()) for look in evidence.standstills
    )
    return dataclasses.replace(evidence, standstills=looks)


def _choose_newest(looks: Sequence[Standstill]) -> list[Standstill]:
    return sorted(looks, key=lambda look: look.after_s)[-LOOKS:]


def _drop_bystanders(evidence: Evidence) -> Evidence:
    """Leave out processes that are neither ranks nor launchers and of which nothing was said."""
    telling = {each.pid for each in evidence.exceptions} | {each.pid for each in evidence.crashes}
    kept = tuple(
        each
        for each in evidence.processes
        if each.role in ("rank", "launcher") or each.pid in telling or each.signal or each.exit_code
    )
    return dataclasses.replace(evidence, processes=kept[:4096])


def _drop_texts(evidence: Evidence) -> Evidence:
    return dataclasses.replace(evidence, texts=evidence.texts[:500], exceptions=evidence.exceptions[:500])


def _drop_training(evidence: Evidence) -> Evidence:
    """Leave out all of it: of a part, checks might conclude that ranks did less than others."""
    return dataclasses.replace(evidence, training=())


def _keep_last(milestones: tuple[Milestone, ...]) -> tuple[Milestone, ...]:
    """Return the last three, and the phase."""
    phases = tuple(each for each in milestones if each.name == PHASE)
    return (*phases, *[each for each in milestones if each.name != PHASE][-3:])


def _drop_details(evidence: Evidence) -> Evidence:
    processes = tuple(
        dataclasses.replace(each, last_words=None, milestones=_keep_last(each.milestones), command=())
        for each in evidence.processes[:1024]
    )
    return dataclasses.replace(
        evidence,
        processes=processes,
        wrappers=(),
        exceptions=evidence.exceptions[:64],
        texts=evidence.texts[:64],
        standstills=tuple(_choose_newest(evidence.standstills)),
    )
