"""The evidence of all tasks of a job as one: what each wrote when it ended, and what those left who could not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.evidence import Evidence, Launch, merge_evidence
from ddpdoctor.evidence.bundle import renumber_node
from ddpdoctor.evidence.job import JobEnd, MemoryRecord
from ddpdoctor.evidence.nodes import describe_launch, join_evidence
from ddpdoctor.evidence.standstill import Standstill, last_looks
from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.nodes.sums import require_numbers
from ddpdoctor.watch.readers.collect import collect_run, collect_training
from ddpdoctor.watch.tasks.folder import Folder, Seen, read_some
from ddpdoctor.watch.tasks.looks import join_looks, number_places

END_BYTES = 64 << 20
"""Most bytes of what one task says at its end."""
LOG_BYTES = 8 << 20
"""Most bytes read of each log of a task that could not say what it saw, half of them at each end."""
NAMED = 8
"""Tasks without an end that are named."""


def write_end(folder: Folder, evidence: Evidence) -> None:
    """Leave behind what this task saw.

    Raises:
        OSError: it cannot be written.
    """
    write_below(folder.kept, f"{folder.slot}/end.json", json.dumps(evidence.to_dict()).encode())


def join_tasks(folder: Folder, own: Evidence, seen: Sequence[Seen]) -> Evidence:
    """Return the evidence of the whole job.

    Args:
        folder: of the job.
        own: evidence of this task.
        seen: how all tasks stand.
    """
    lost: list[str] = []
    parts: dict[int, Evidence] = {folder.task.number: own}
    for each in seen:
        number = each.about.number
        if number not in parts and each.state != "absent":
            parts[number] = _read_end(folder, number, lost) or _collect(folder, each)
    if any(part.members for part in parts.values()):  # torchrun's agents have met and numbered their nodes
        known = [part for part in parts.values() if part.members]
        whole = describe_launch(join_evidence(known))
    else:
        whole = _merge(folder, parts)
    end = _join_ends(folder, parts, seen, lost)
    return dataclasses.replace(whole, job=(end,), absent=own.absent)


def _merge(folder: Folder, parts: dict[int, Evidence]) -> Evidence:
    nodes = number_places(folder, parts)
    numbered = {number: renumber_node(part, nodes[number]) for number, part in sorted(parts.items())}
    whole = merge_evidence(list(numbered.values()))
    ranks = whole.ranks if len({each.rank for each in whole.ranks}) == len(whole.ranks) else ()
    training, lost = collect_training([folder.kept / f"task-{number}" for number in sorted(parts)])
    whole = dataclasses.replace(
        whole,
        launch=_describe_launch(folder, numbered, nodes),
        ranks=ranks,
        memory=_join_memory(whole.memory),
        standstills=_join_standstills(nodes, numbered),
        training=(training,) if training is not None else (),
    )
    if lost and whole.job:
        first = dataclasses.replace(whole.job[0], lost=(*whole.job[0].lost, *lost))
        whole = dataclasses.replace(whole, job=(first, *whole.job[1:]))
    return whole


def _describe_launch(folder: Folder, parts: dict[int, Evidence], nodes: dict[int, int]) -> Launch:
    first = parts[min(parts)].launch
    sizes = [each.world_size for part in parts.values() for each in part.processes if each.world_size]
    by_node: dict[int, int] = {}
    for number, part in parts.items():
        ranks = {each.rank for each in part.processes if each.is_rank and each.rank is not None}
        by_node[nodes[number]] = by_node.get(nodes[number], 0) + (len(ranks) or 1)
    return dataclasses.replace(
        first,
        launcher=folder.task.launcher,
        nnodes=len(by_node),
        nproc=max(by_node.values()),
        world_size=max(sizes, default=folder.task.count),
        node_rank=0,
        backend=next((p.launch.backend for p in parts.values() if p.launch.backend != "none"), "none"),
    )


def _join_memory(records: Sequence[MemoryRecord]) -> tuple[MemoryRecord, ...]:
    """Return one record of each host: its tasks have looked at the same memory and the same kernel's log."""
    by_node: dict[int, MemoryRecord] = {}
    for each in records:
        known = by_node.setdefault(each.node, each)
        by_node[each.node] = dataclasses.replace(
            known,
            peak_bytes=_largest(known.peak_bytes, each.peak_bytes),
            oom_kills=_largest(known.oom_kills, each.oom_kills),
            kernel_lines=tuple(dict.fromkeys((*known.kernel_lines, *each.kernel_lines))),
            shm_free_bytes=each.shm_free_bytes if known.shm_free_bytes is None else known.shm_free_bytes,
        )
    return tuple(by_node[node] for node in sorted(by_node))


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _join_standstills(nodes: dict[int, int], parts: dict[int, Evidence]) -> tuple[Standstill, ...]:
    """Return the looks at all tasks together, and how all of them stood at last."""
    together = [look for part in parts.values() for look in part.standstills if look.joined]
    newest = []
    for number, part in parts.items():
        last = last_looks([look for look in part.standstills if not look.asked])
        if last is not None:
            newest.append((nodes[number], last))
    still = [each for each in newest if each[1].stage not in ("withdrawn", "moving")] or newest
    if not still:
        return ()
    whole = _add_recorders(join_looks(sorted(still, key=lambda each: not each[1].joined)), parts.values())
    after_s = max(look.after_s for look in (whole, *together))
    return (*together, dataclasses.replace(whole, after_s=after_s))


def _add_recorders(whole: Standstill, parts: Iterable[Evidence]) -> Standstill:
    """Give each rank what its own recorder told its own task: nobody else may ask it."""
    told = {
        stand.rank: stand.recorder
        for part in parts
        for look in part.standstills
        for stand in look.stands
        if stand.recorder is not None and stand.recorder.problem is None
    }
    stands = tuple(dataclasses.replace(s, recorder=told.get(s.rank, s.recorder)) for s in whole.stands)
    return dataclasses.replace(whole, stands=stands)


def _join_ends(
    folder: Folder, parts: dict[int, Evidence], seen: Sequence[Seen], lost: Sequence[str]
) -> JobEnd:
    """Return how the whole job ended: as its worst task did; unknown where one never said."""
    ended = {each.about.number for each in seen if each.state == "ended"} | {folder.task.number}
    ends = [end for number, part in sorted(parts.items()) if number in ended for end in part.job[:1]]
    failed = [end for end in ends if end.exit_code or end.signal is not None]
    own = parts[folder.task.number].job[0]
    worst = next((end for end in failed if not end.stopped_elsewhere), failed[0] if failed else own)
    unknown = [each for each in seen if each.about.number not in ended]
    said = [text for number in sorted(parts) for end in parts[number].job for text in end.lost]
    return dataclasses.replace(
        worst,
        exit_code=worst.exit_code if failed or not unknown else None,
        launcher=folder.task.launcher,
        restarts=max((end.restarts for end in ends), default=0),
        duration_s=max(end.duration_s for end in (*ends, own)),
        lost=tuple(dict.fromkeys([*said, *lost, *_name_unknown(unknown)])),
        interrupted=next((end.interrupted for end in ends if end.interrupted), None),
        stopped=any(end.stopped for end in ends),
        stopped_elsewhere=None,
    )


_WORDS = {
    "gone": "ended without a record: its ddpdoctor run was killed, or its host was lost",
    "alive": "had not ended when the report was made",
    "absent": "was not seen: no ddpdoctor run of it joined here",
}


def _name_unknown(tasks: Sequence[Seen]) -> list[str]:
    lines = []
    for each in tasks[:NAMED]:
        host = f" on {each.about.host}" if each.about.host else ""
        lines.append(f"task {each.about.number}{host} {_WORDS[each.state]}")
    if len(tasks) > NAMED:
        lines.append(f"{len(tasks) - NAMED} more tasks did not report their exit status")
    return lines


def _read_end(folder: Folder, number: int, lost: list[str]) -> Evidence | None:
    data = read_some(folder.kept / f"task-{number}" / "end.json", END_BYTES + 1)
    if data is None:
        return None
    try:
        if len(data) > END_BYTES:
            raise ValueError("it is too long")
        part = Evidence.from_dict(json.loads(data))
        require_numbers(part)
        return part
    except (ValueError, TypeError, RecursionError) as problem:
        lost.append(f"the evidence of task {number} could not be read: {problem}"[:300])
        return None


def _collect(folder: Folder, task: Seen) -> Evidence:
    """Return what a task's processes wrote down so far, where the task itself has not ended or could not say."""
    number = task.about.number
    found = collect_run(folder.kept / f"task-{number}", log_bytes=LOG_BYTES)
    host = folder.read_about(number).host
    changes: dict[str, Any] = {
        kind: tuple(getattr(found, kind))
        for kind in ("exceptions", "crashes", "wrappers", "texts", "standstills")
    }
    lives = task.state == "alive"
    processes = tuple(
        dataclasses.replace(
            each,
            host=each.host or host,
            running=lives and each.exit_code is None and each.signal is None and not each.clean_end,
        )
        for each in found.processes
    )
    backend = next((each.backend for each in processes if each.backend), None)
    launch = Launch(command="run", launcher=folder.task.launcher, backend=backend or "none")
    return Evidence(
        launch=launch, processes=processes, job=(JobEnd(None, lost=tuple(found.lost)),), **changes
    )
