"""Events of a process as records: what the hook wrote, made plain, bounded and free of secrets."""

from __future__ import annotations

import dataclasses
import linecache
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.codec import LATEST_NS
from ddpdoctor.evidence.job import (
    PHASE,
    ExceptionRecord,
    Milestone,
    Moment,
    ProcessRecord,
    SettingChange,
    UnwaitedWork,
    WrappedParameter,
    WrapperFacts,
)
from ddpdoctor.evidence.variables import find_rule
from ddpdoctor.facts.events import (
    AnyEvent,
    CaughtEvent,
    ChildExit,
    Cluster,
    ExceptionEvent,
    ExitCall,
    Setting,
    Start,
    Torch,
    Work,
    WrapperError,
)
from ddpdoctor.facts.events import Milestone as Milestone_
from ddpdoctor.facts.ownership import USER, Roots, find_owner
from ddpdoctor.facts.training_events import Event
from ddpdoctor.gather.scrub import scrub, scrub_argv, scrub_paths
from ddpdoctor.gather.variables import allowed_variables
from ddpdoctor.phases import LONGEST
from ddpdoctor.source import find_handler, find_loss, is_source
from ddpdoctor.source.files.periodic import Round, find_rounds
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.files.replaced import Replacement, find_freezes, find_replacements
from ddpdoctor.source.own_imports import read_program

ANOMALY = "anomaly mode"
"""Name under which autograd's anomaly mode is recorded: a setting that is not a variable."""
MESSAGE_LIMIT = 4000
MOST_DEEP = 4
"""Groups of exceptions within groups that are looked into."""
STATEMENTS = 4
"""Statements of a program that are kept of a kind."""
SOURCE_LIMIT = 200
"""Characters of a source line that are shown."""
_OURS = str(Path(__file__).parents[2])


class Shortener:
    """Names files relative to the working directory where they lie below it, else without the home.

    Args:
        cwd: the working directory.
        files: what to put before the name of a file to read it, e.g. ``/proc/17/root`` for those of a container.
    """

    def __init__(self, cwd: Path, files: str = "") -> None:
        self._base = str(cwd if files else cwd.resolve()) + os.sep
        self._files = files
        self._roots = Roots(ours=(_OURS,))
        self._known: dict[str, tuple[str, str | None, bool]] = {}
        """File -> its name, its owner where that is not as the name says, and whether it is the user's."""

    def learn(self, event: Start | Torch) -> None:
        """Take what a process says of the folders of Python and torch: a ``start`` or a ``torch`` event."""
        library, torch, program = event.get("library"), event.get("folder"), event.get("executable")
        told = Roots(
            python=(library,) if isinstance(library, str) else (),
            torch=(torch,) if isinstance(torch, str) else (),
            scripts=(os.path.dirname(program),) if isinstance(program, str) else (),
        )
        joined = self._roots.join(told)
        if joined.folders != self._roots.folders:
            self._roots = joined
            self._known.clear()

    def __call__(self, name: str) -> str:
        """Return how a file is called in the report."""
        if name.startswith(self._base):
            return name[len(self._base) :]
        return scrub_paths(name)

    def frames(self, rows: Any) -> tuple[Frame, ...]:
        """Return frames as the hook lists them: file, line, function."""
        if not isinstance(rows, list):
            return ()
        return tuple(self._frame(str(file), int(line or 0), str(name)) for file, line, name in rows)

    def find_handler(self, rows: Any) -> Frame | None:
        """Return the innermost `except` of the user's own code that goes on after an exception at one of some lines.

        Args:
            rows: Frames as the hook lists them, innermost first.
        """
        for file, line, name in rows if isinstance(rows, list) else ():
            if find_owner(str(file), self._roots) == USER and os.path.isabs(str(file)):
                found = find_handler(self._files + str(file), int(line or 0))
                if found is not None:
                    return Frame(self(str(file)), found.line, str(name), scrub(found.text)[:SOURCE_LIMIT])
        return None

    def find_loss(self, rows: Any) -> tuple[Frame, ...]:
        """Return the line that gave a loss its value before those from which its backward began, where that is known.

        Args:
            rows: Frames of the backward as the hook lists them, innermost first.
        """
        frames = self.frames(rows)
        for file, line, name in rows if frames else ():
            if find_owner(str(file), self._roots) == USER and os.path.isabs(str(file)):
                found = find_loss(self._files + str(file), int(line or 0))
                return (self._frame(str(file), found[0], str(name)), *frames) if found is not None else frames
        return frames

    def find_rounds(self, rows: Any) -> tuple[Frame, ...]:
        """Return the tests by a number of steps behind which a program carries its parameters over ranks.

        Args:
            rows: Frames of one of its lines as the hook lists them, innermost first: the outermost of its own files is
                the script.
        """
        return self._find_statements(rows, find_rounds)

    def find_replacements(self, rows: Any, names: Collection[str]) -> tuple[Frame, ...]:
        """Return the statements of a program that put other modules under some names into models that exist.

        Args:
            rows: Frames of one of its lines, as for `find_rounds`.
            names: Of attributes.
        """
        return self._find_statements(rows, lambda scripts: find_replacements(scripts, names))

    def find_freezes(self, rows: Any) -> tuple[Frame, ...]:
        """Return the statements of a program that freeze parameters.

        Args:
            rows: Frames of one of its lines, as for `find_rounds`.
        """
        return self._find_statements(rows, find_freezes)

    def _find_statements(
        self, rows: Any, find: Callable[[list[Script]], Sequence[Round | Replacement]]
    ) -> tuple[Frame, ...]:
        own = [
            str(file)
            for file, _, _ in (rows if isinstance(rows, list) else ())
            if find_owner(str(file), self._roots) == USER and os.path.isabs(str(file))
        ]
        if not own or not is_source(self._files + own[-1]):
            return ()
        script = Path(self._files + own[-1])
        try:
            found = find(read_program(script, script.parent))
        except RecursionError:
            return ()
        return tuple(
            Frame(self(each.file), each.line, "", scrub(each.text)[:SOURCE_LIMIT])
            for each in found[:STATEMENTS]
        )

    def _frame(self, file: str, line: int, function: str) -> Frame:
        known = self._known.get(file)
        if known is None:
            name, owner = self(file), find_owner(file, self._roots)
            known = name, owner if owner != find_owner(name) else None, owner == USER
            self._known[file] = known
        name, told, own = known
        return Frame(name, line, function, _read_source(file, line, self._files) if own else None, told)


def _read_source(file: str, line: int, files: str = "") -> str | None:
    """Return the text of a line of the user's own code: never a value."""
    if not os.path.isabs(file) or not is_source(files + file):
        return None
    text = linecache.getline(files + file, line).strip()
    return scrub(text)[:SOURCE_LIMIT] or None


def read_moment(event: Event) -> Moment:
    """Return when an event was written."""
    mono = event.get("mono_ns")
    return Moment(int(event["wall_ns"]), None if mono is None else int(mono))


def start_process(event: Start, before: ProcessRecord | None, node: int, shorten: Shortener) -> ProcessRecord:
    """Return the record of a process that begins; of a forked one its parent knows more."""
    shorten.learn(event)
    if event.get("forked") and before is None:
        return ProcessRecord(
            pid=int(event["pid"]),
            node=node,
            parent=event.get("ppid"),
            role="other",
            started=read_moment(event),
        )
    script = event.get("script")
    limit = event.get("open_files")
    return ProcessRecord(
        pid=int(event["pid"]),
        node=node,
        host=str(event.get("host") or ""),
        parent=event.get("ppid"),
        role=str(event.get("role") or "other"),
        rank=event.get("rank"),
        local_rank=event.get("local_rank"),
        world_size=event.get("world_size"),
        attempt=int(event.get("attempt") or 0),
        python=str(event["python"])[:40] if event.get("python") else None,
        command=tuple(scrub_argv([str(word) for word in event.get("argv") or ()])),
        script=shorten(os.path.abspath(script)) if isinstance(script, str) and script != "-c" else None,
        started=read_moment(event),
        milestones=(Milestone("start", read_moment(event)),),
        open_files_limit=limit if isinstance(limit, int) and limit > 0 else None,
        variables=allowed_variables({str(k): str(v) for k, v in (event.get("variables") or {}).items()}),
    )


def read_phase(event: AnyEvent) -> str | None:
    """Return the name that the program has given to a phase, without secrets."""
    detail = event.get("detail")
    return scrub(detail[:LONGEST]) if event.get("name") == PHASE and isinstance(detail, str) else None


def advance_process(record: ProcessRecord, event: AnyEvent, shorten: Shortener) -> ProcessRecord:
    """Take one event into the record of its process."""
    if event["event"] == "role":
        return dataclasses.replace(record, role=str(event["role"]))
    if event["event"] == "torch":
        shorten.learn(event)
        return dataclasses.replace(record, torch=str(event.get("version")))
    if event["event"] == "milestone":
        frames = shorten.frames(event.get("frames")) if event["name"] == "destroy" else ()
        made = Milestone(str(event["name"]), read_moment(event), read_phase(event), frames)
        # Of phases, which may be many, the last one counts.
        kept = (each for each in record.milestones if each.name != PHASE or made.name != PHASE)
        record = dataclasses.replace(record, milestones=(*kept, made))
        return _begin_group(record, event) if made.name == "init-begin" else record
    if event["event"] == "init":
        rank = event.get("rank")
        own = rank if isinstance(rank, int) and rank >= 0 else record.rank
        return dataclasses.replace(
            record,
            role="rank" if record.role == "other" else record.role,
            rank=own,
            world_size=event.get("world_size") or record.world_size,
            backend=event.get("backend"),
            init_method=_read_method(event.get("init_method")) or record.init_method,
        )
    if event["event"] == "cluster":
        return dataclasses.replace(record, cluster=read_cluster(event))
    if event["event"] == "setting":
        made_by = _read_setting(event, shorten)
        return (
            record if made_by is None else dataclasses.replace(record, settings=(*record.settings, made_by))
        )
    if event["event"] == "work":
        work = _read_work(event, shorten)
        others = (each for each in record.unwaited if (each.op, each.frames) != (work.op, work.frames))
        return dataclasses.replace(record, unwaited=(*others, work))
    if event["event"] == "exit-call":
        text = event.get("text")
        called = Milestone("exit-call", read_moment(event))
        return dataclasses.replace(
            record,
            milestones=(*record.milestones, called),
            exit_call=shorten.frames(event.get("frames")),
            exit_how=str(event.get("how")),
            exit_text=scrub(str(text))[:MESSAGE_LIMIT] if text else None,
        )
    if event["event"] == "exception" and event.get("open_files"):
        return dataclasses.replace(record, open_files_limit=int(event["open_files"]))
    if event["event"] == "end":
        done = Milestone("end", read_moment(event))
        return dataclasses.replace(
            record, clean_end=True, ended=done.at, milestones=(*record.milestones, done)
        )
    return record


def read_cluster(event: Cluster) -> str:
    """Return how a cluster is called in a sentence."""
    address = scrub(str(event.get("address") or ""))[:SOURCE_LIMIT]
    return f"{str(event.get('engine'))[:40]} cluster{f' at {address}' if address else ''}"


def _read_setting(event: Setting, shorten: Shortener) -> SettingChange | None:
    """Return a setting that a program made; None for a variable that may not be kept."""
    name = str(event.get("name"))
    if name != ANOMALY and find_rule(name) is None:
        return None
    return SettingChange(
        name,
        scrub(str(event.get("value")))[:SOURCE_LIMIT],
        how=str(event.get("how") or "set"),
        at=read_moment(event),
        frames=shorten.frames(event.get("frames")),
        count=int(event.get("count") or 1),
        cuda=bool(event.get("cuda")),
    )


def _read_work(event: Work, shorten: Shortener) -> UnwaitedWork:
    """Return what is known of the asynchronous work of one line."""
    group, device = event.get("group"), event.get("device")
    return UnwaitedWork(
        op=str(event["op"])[:SOURCE_LIMIT],
        begun=_count(event.get("begun")),
        dropped=_count(event.get("dropped")),
        kept=_count(event.get("kept")),
        first=_count(event.get("first")),
        last=_count(event.get("last")),
        calls=_count(event.get("calls")),
        group=str(group)[:SOURCE_LIMIT] if group is not None else None,
        device=str(device)[:SOURCE_LIMIT] if device is not None else None,
        frames=shorten.frames(event.get("frames")),
        blind=bool(event.get("blind")),
    )


def _count(value: Any) -> int:
    return min(max(0, int(value or 0)), LATEST_NS)


_IDENTITY = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables by which a launcher tells ranks who they are; what a script makes of them is in ``init``."""


def _begin_group(record: ProcessRecord, event: Milestone_) -> ProcessRecord:
    """A process that wants to join a group is a rank, also where it never gets in."""
    detail = event.get("detail")
    if not isinstance(detail, dict):
        return record
    variables = event.get("variables")
    given = variables if isinstance(variables, dict) else {}
    rank = _choose_number(detail.get("rank"), given.get("RANK"))
    return dataclasses.replace(
        record,
        role="rank" if record.role == "other" and rank is not None else record.role,
        rank=rank if rank is not None else record.rank,
        world_size=_choose_number(detail.get("world_size"), given.get("WORLD_SIZE")) or record.world_size,
        backend=str(detail["backend"]) if detail.get("backend") else record.backend,
        init_method=_read_method(detail.get("init_method")) or record.init_method,
        variables=_renew(record.variables, given),
    )


def _renew(known: dict[str, str], given: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a process as it joins a group; who it is stays what its launcher said."""
    settings = {str(name): str(value) for name, value in given.items() if str(name) not in _IDENTITY}
    if not settings:
        return known
    own = {name: value for name, value in known.items() if name in _IDENTITY}
    return own | allowed_variables(settings)


def _choose_number(given: object, variable: object) -> int | None:
    """Return what a call was given (-1: nothing), else what the environment says."""
    if isinstance(given, int) and given >= 0:
        return given
    text = str(variable)
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _read_method(value: object) -> str | None:
    return scrub_paths(scrub(str(value)))[:SOURCE_LIMIT] if value else None


def end_process(record: ProcessRecord, end: ChildExit | None) -> ProcessRecord:
    """Take in what the parent saw of a process's end."""
    if end is not None:
        record = dataclasses.replace(
            record, ended=read_moment(end), exit_code=end.get("code"), signal=end.get("signal")
        )
    return record


def read_exception(
    event: ExceptionEvent | CaughtEvent | ExitCall,
    record: ProcessRecord,
    shorten: Shortener,
    *,
    handled: bool = False,
) -> ExceptionRecord:
    """Return an exception with its chain.

    Args:
        event: ``exception``, or ``exit-call`` with one.
        record: its process.
        shorten: names files.
        handled: the exception in whose handler an exit was called.
    """
    told: Any = event
    data = told["exception"] if handled else told

    def make(data: dict[str, Any], link: str | None) -> ExceptionRecord:
        return ExceptionRecord(
            pid=record.pid,
            type=str(data.get("type")),
            message=scrub(str(data.get("message") or ""))[:MESSAGE_LIMIT],
            frames=shorten.frames(data.get("frames")),
            node=record.node,
            host=record.host,
            rank=record.rank,
            attempt=record.attempt,
            link=link,
        )

    parent = data.get("parent")
    return dataclasses.replace(
        make(data, None),
        kind="handled"
        if handled
        else "caught"
        if event["event"] == "caught"
        else str(data.get("kind") or "uncaught"),
        thread=data.get("thread"),
        worker=data.get("worker"),
        at=read_moment(event),
        chain=tuple(make(each, str(each.get("link"))) for each in _list_chain(data)),
        parent_frames=shorten.frames(parent.get("frames")) if isinstance(parent, dict) else (),
    )


def _list_chain(data: dict[str, Any], depth: int = 0) -> list[dict[str, Any]]:
    """Return the exceptions before one, nearest first; of a group its first member, and what that came from."""
    members = data.get("members")
    if not isinstance(members, list) or not members or depth > MOST_DEEP:
        return list(data.get("chain") or ())
    return [{**members[0], "link": "member"}, *_list_chain(members[0], depth + 1)]


def read_wrapper(
    event: WrapperError, record: ProcessRecord, shorten: Shortener, raised: Any = None
) -> WrapperFacts:
    """Return what was written of a DistributedDataParallel object.

    Args:
        event: what was written.
        record: of its process.
        shorten: names files.
        raised: Frames of the exception for which it was written, as the hook lists them.
    """
    rows = tuple(
        WrappedParameter(
            index=int(row["index"]),
            name=str(row.get("name") or ""),
            module=str(row.get("module") or ""),
            module_class=str(row.get("class") or ""),
            forward_ran=row.get("forward_ran"),
            requires_grad=bool(row.get("requires_grad", True)),
            got_grad=row.get("grad"),
        )
        for row in event.get("parameters") or ()
    )
    return WrapperFacts(
        pid=record.pid,
        model=str(event.get("wrapper") or ""),
        parameters=rows,
        find_unused_parameters=event.get("find_unused_parameters"),
        static_graph=event.get("static_graph"),
        broadcast_buffers=event.get("broadcast_buffers"),
        buffers=tuple(str(name) for name in event.get("buffers") or ()),
        forwards=event.get("forwards"),
        freezes=() if all(row.requires_grad for row in rows) else shorten.find_freezes(raised),
        node=record.node,
        host=record.host,
        rank=record.rank,
        attempt=record.attempt,
        at=read_moment(event),
    )
