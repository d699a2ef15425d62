"""Stacks of many ranks as one tree: common callers once, and at each fork who is where and who is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.native import leave_interpreter
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor.facts.ownership import trim

NATIVE_SHOWN = 8
"""Native frames of a rank, the innermost."""


@dataclass(slots=True)
class Branch:
    """A place and what was called from it."""

    frame: Frame | None
    """None at the root."""
    ranks: RankSet
    children: list[Branch] = field(default_factory=list)
    """Those of the most ranks first."""


def is_foreign(frame: Frame) -> bool:
    """Whether a frame lies in native code, an installed package or the standard library."""
    return not frame.line or not frame.is_user


def is_in_backward(stand: Stand) -> bool:
    """Whether a rank stands in the autograd engine, which calls the reducer's collectives by itself."""
    return stand.call is None and bool(stand.frames) and stand.frames[0].function == "_engine_run_backward"


def list_frames(stand: Stand) -> list[Frame]:
    """Return what is shown of a rank's stack, outermost first: its own lines, and what the innermost of them called.

    Native frames stand in their library, at line 0.
    """
    return [*_list_python(stand), *_list_native(stand)]


def _list_native(stand: Stand) -> list[Frame]:
    frames = leave_interpreter(stand.native)[:NATIVE_SHOWN]
    return [Frame(frame.library, 0, frame.function) for frame in reversed(frames)]


def _list_python(stand: Stand) -> list[Frame]:
    frames = list(stand.frames)
    own = [frame for frame in frames if not is_foreign(frame)]
    if not own:
        return frames[:1]
    inside: list[Frame] = []
    for frame in frames:
        if not is_foreign(frame):
            break
        inside.append(frame)
    named = stand.call.op.rpartition(".")[2] if stand.call is not None else None
    called = next(
        (frame for frame in reversed(inside) if frame.function == named), inside[0] if inside else None
    )
    return [*reversed(own), *([called] if called is not None else [])]


def build_tree(stands: Sequence[Stand]) -> Branch:
    """Return the tree of the living ranks whose stacks were read."""
    paths = [
        (stand.rank, list_frames(stand)) for stand in stands if stand.alive and (stand.frames or stand.native)
    ]
    return _grow(None, paths, 0)


def _grow(frame: Frame | None, paths: Sequence[tuple[int, list[Frame]]], depth: int) -> Branch:
    groups: dict[tuple[str, int, str], list[tuple[int, list[Frame]]]] = {}
    for rank, frames in paths:
        if len(frames) > depth:
            each = frames[depth]
            groups.setdefault((each.file, each.line, each.function), []).append((rank, frames))
    branch = Branch(frame, RankSet(rank for rank, _ in paths))
    for members in groups.values():
        branch.children.append(_grow(members[0][1][depth], members, depth + 1))
    branch.children.sort(key=lambda child: (-len(child.ranks), next(iter(child.ranks))))
    return branch


def walk(branch: Branch, most: int) -> Iterator[tuple[int, Branch, RankSet]]:
    """Yield (depth, branch, ranks that are not there) from the outermost place on, at forks the largest part first.

    Depth grows at forks only: what one place alone calls stands below it. At most ``most`` children of a fork are
    given; a branch without a frame stands for the others.
    """
    yield from _walk(branch, 0, branch.ranks, most)


def _walk(branch: Branch, depth: int, everybody: RankSet, most: int) -> Iterator[tuple[int, Branch, RankSet]]:
    fork = len(branch.children) > 1 or (branch.children and branch.children[0].ranks != branch.ranks)
    for child in branch.children[:most]:
        yield depth, child, everybody.minus(child.ranks) if fork else RankSet()
        yield from _walk(child, depth + (1 if len(child.children) > 1 else 0), everybody, most)
    rest = branch.children[most:]
    if rest:
        yield depth, Branch(None, RankSet().union(*(child.ranks for child in rest)), rest), RankSet()


def name_place(frame: Frame) -> str:
    """Return ``train.py:88``; of an installed package its name and the file, of native code its library."""
    if not frame.line:
        return frame.file
    if not is_foreign(frame):
        return f"{frame.file}:{frame.line}"
    file = trim(frame.file)
    package, _, rest = file.partition("/")
    folder, _, name = rest.rpartition("/")
    return f"{package}/…/{name}:{frame.line}" if folder else f"{file}:{frame.line}"
