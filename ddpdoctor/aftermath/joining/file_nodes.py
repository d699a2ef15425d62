"""Which node a file is of, where several nodes' files are read together and their words do not tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from ddpdoctor.aftermath.parts import Log

_ENDINGS = re.compile(r"(?:\.(?:log|txt|out|err|json|stdout|stderr|gz|bz2|xz|\d{1,4})){1,6}$")


def name_by_paths(names: Sequence[str]) -> list[str]:
    """Return for each path the first part in which it differs from the others, without a log's ending.

    ``runs/node-a/train.log`` and ``runs/node-b/train.log`` give ``node-a`` and ``node-b``.
    """
    parts = [PurePath(name).parts for name in names]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return [_ENDINGS.sub("", each[shared]) or each[shared] if each else "" for each in parts]


def separate_hosts(logs: Sequence[Log]) -> None:
    """Give the agents of several nodes names of their own where they all call their host the same.

    Containers and test machines are all ``localhost``. Two logs are of different nodes where one local rank is another
    rank in each; what a log's file or folder is called then names its node.
    """
    speaking = [log for log in logs if log.facts.agent.failures]
    apart = [
        log
        for log in speaking
        if any(_contradict(log, other) for other in speaking if other is not log and _share_host(log, other))
    ]
    if not apart:
        return
    names = name_by_paths([log.name for log in apart])
    if len(set(names)) < len(names):
        names = [log.name for log in apart]
    for log, name in zip(apart, names, strict=True):
        for row in log.facts.agent.failures:
            row.host = name


def _share_host(one: Log, other: Log) -> bool:
    return bool(_hosts(one) & _hosts(other))


def _hosts(log: Log) -> set[str]:
    return {row.host for row in log.facts.agent.failures}


def _contradict(one: Log, other: Log) -> bool:
    known = {row.local_rank: row.rank for row in one.facts.agent.failures if row.rank is not None}
    return any(
        row.rank is not None and known.get(row.local_rank, row.rank) != row.rank
        for row in other.facts.agent.failures
    )
