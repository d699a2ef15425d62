"""What dumps tell of where ranks stood: those of torch's Flight Recorder, and stacks in files."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from ddpdoctor.aftermath.given_files import Sources
from ddpdoctor.aftermath.joining.whose import make_shortener
from ddpdoctor.aftermath.stackfiles import read_stacks
from ddpdoctor.evidence import Absent, Evidence, Launch
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.gather.opening import UNREADABLE
from ddpdoctor.gather.recorder import read_dumps
from ddpdoctor.watch.attach.stack_calls import find_call


def read_stack_files(sources: Sources, lost: list[str]) -> Evidence | None:
    """Return where ranks stood by stacks in files; None where there are none whose rank is told."""
    shorten = make_shortener(Path.cwd())
    stands: dict[int, Stand] = {}
    for source in sources.found:
        if source.kind != "stacks":
            continue
        try:
            found = read_stacks(source.path, source.name)
        except UNREADABLE as problem:
            lost.append(f"{source.name} cannot be read: {getattr(problem, 'strerror', None) or problem}")
            continue
        for each in found:
            if each.rank is None:
                lost.append(
                    f"{source.name} does not show which rank's stacks it contains: name it after the rank"
                )
            elif each.rank in stands:
                lost.append(f"there are several stacks of rank {each.rank}: that of {source.name} is skipped")
            else:
                call = find_call(each.frames)
                frames = tuple(dataclasses.replace(f, file=shorten(f.file)) for f in each.frames)
                call = dataclasses.replace(call, frames=frames) if call is not None else None
                stands[each.rank] = Stand(
                    each.rank,
                    each.pid,
                    call=call,
                    frames=frames,
                    frames_before=frames,
                    native=each.native,
                    watched=False,
                )
    if not stands:
        return None
    world = max(stands) + 1
    look = Standstill(
        Moment(time.time_ns()), 0.0, 0.0, tuple(stands[rank] for rank in sorted(stands)), world, given=True
    )
    why = Absent("not available from stacks", applicable=False)
    return Evidence(
        launch=Launch("analyze", nproc=world, world_size=world, backend="none"),
        standstills=(look,),
        absent={kind: why for kind in KINDS if kind != "standstills"},
    )


def read_recorder(sources: Sources, lost: list[str]) -> Evidence | None:
    """Return the evidence of Flight Recorder dumps; None where there are none that can be read."""
    files = [(source.path, source.name) for source in sources.found if source.kind == "recorder"]
    log = read_dumps(files, lost) if files else None
    if log is None:
        return None
    shorten = make_shortener(Path.cwd())
    frames = tuple(dataclasses.replace(frame, file=shorten(frame.file)) for frame in log.frames)
    why = Absent("not available from Flight Recorder dumps", applicable=False)
    return Evidence(
        launch=Launch("analyze", nproc=log.world or 1, world_size=log.world or 1, backend="none"),
        calls=(dataclasses.replace(log, frames=frames, lost=tuple(lost)),),
        absent={kind: why for kind in KINDS if kind != "calls"},
    )
