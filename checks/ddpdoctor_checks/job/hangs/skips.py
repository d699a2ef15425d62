"""The one `if` by which ranks came past a call in which others wait: an early return, or a break out of the loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.standstill import Call
from ddpdoctor.facts.ownership import TORCH
from ddpdoctor_checks.common.frames import user_frames, user_line
from ddpdoctor_checks.job.hangs.needs import BACKWARD, FORWARD
from ddpdoctor_checks.job.hangs.sides import called_at, guard_of, spot_of
from ddpdoctor_checks.job.hangs.standing import Place

SEEN = 6
"""Frames whose conditions are searched for, from the innermost on (``GUARDED`` of ddpdoctor.watch.live.look)."""
TESTS, OTHERS = ("if", "else", "unless"), ("for", "while", "except", "case")
_ALIKE = re.compile(r"is_initialized\(\)|is_available\(\)|world_size|distributed\b", re.I)
"""Parts of a condition that have the same value on all ranks of a job."""
_FIXED = re.compile(r"for \w+ in range\((?!.*\b(len|rank)\b)")
_MODULES = re.compile(
    r"for [\w, ()]{1,80} in (enumerate\()?self\.(?!\w*(load|data|iter|batch|stream|sampl|queue|file|shard))\w+\)?:",
    re.I,
)
"""Layers of a model, by the text of a loop over them: `for block in self.blocks:`."""
_ENDLESS = re.compile(r"while (True|1)\s*:")
_HEAD = re.compile(r"^(el)?if\b|:\s*(return\b.*)?$")


def find_skip(inside: Place, past: Place) -> Frame | None:
    """Return the `if` by which a rank has skipped the call in which another one waits.

    It has where both are in one function, the rank at a later line than the other in the same turn of all loops, or in
    the next turn, and one `if` alone decides whether the call is issued on the way. None where the way is not known,
    where several `if`s or a loop may have led past the call, and where one of them is a test of the rank.
    """
    one, other = _list_frames(inside), _list_way(past)
    shared = _count_shared(one, other)
    if shared >= min(len(one), len(other)):
        return None
    mine, theirs = one[shared], other[shared]
    if not _is_in(mine, theirs):
        return None
    if theirs.line <= mine.line and not _went_round(inside, past, theirs, mine):
        return None
    if guard_of(inside) is not None or guard_of(past) is not None or _issued(past, inside):
        return None
    if not _is_known(inside, one[shared:]) or not (past.kind == "device" or _stands_there(past)):
        return None
    passed = {spot_of(each) for each in past.stand.conditions}
    apart = [each for each in inside.stand.conditions if spot_of(each) not in passed]
    if any(each.function in OTHERS for each in apart):
        return None
    tests = [each for each in apart if each.function in TESTS and not is_alike(each)]
    return tests[0] if len(tests) == 1 else None


def find_turn(inside: Place, past: Place) -> Frame | None:
    """Return the loop around a DataLoader's in which a rank is a turn ahead of one that waits behind the DataLoader's.

    It has come past the call in which the other one waits: by an exception that was caught, or an early return.
    """
    around = {spot_of(each) for each in past.stand.conditions if each.function in ("for", "while")}
    loops = [
        each
        for each in inside.stand.conditions
        if each.function in ("for", "while") and spot_of(each) in around
    ]
    mine = {
        spot_of(line): each for each in inside.stand.loaders if (line := user_line(each.frames)) is not None
    }
    for loader in reversed(past.stand.loaders):
        line = user_line(loader.frames)
        other = mine.get(spot_of(line)) if line is not None else None
        both = {spot_of(each) for each in loops}
        if line is None or other is None or spot_of(line) in both or not around <= {*both, spot_of(line)}:
            continue  # or a loop in between, of which it is not known how often it was entered
        there = [each for each in _list_frames(inside) if _is_in(each, line)]
        if loader.number > other.number and there and there[-1].line > line.line:
            return next((each for each in loops if each.file == line.file and each.line < line.line), None)
    return None


def stands_in_if(inside: Place, test: Frame) -> bool:
    """Whether an `if` that decides stands in the function of the call itself, not in one that calls it."""
    frames = _list_frames(inside)
    below = [each for each in frames if each.file == test.file and each.line >= test.line]
    return bool(below) and min(below, key=lambda each: each.line) is frames[-1]


def find_break(conditions: Sequence[Frame], loop: Frame) -> Frame | None:
    """Return the `if` behind which a loop ends early, where it can end in no other way that differs across ranks."""
    if not (_FIXED.match(loop.source or "") or _ENDLESS.match(loop.source or "")):
        return None
    breaks = list_breaks(conditions, loop)
    return breaks[0] if len(breaks) == 1 else None


def list_breaks(conditions: Sequence[Frame], loop: Frame) -> list[Frame]:
    """Return the `if`s behind which a loop ends; they come just before it."""
    breaks: list[Frame] = []
    for each in conditions:
        if each.function in ("for", "while"):
            if spot_of(each) == spot_of(loop):
                return breaks
            breaks = []
        elif each.function == "until":
            breaks.append(each)
    return []


def is_fixed(conditions: Sequence[Frame], loop: Frame) -> bool:
    """Whether a loop runs as often on all ranks: over a range or the layers of a model, and without a break."""
    source = loop.source or ""
    alike = _FIXED.match(source) or _MODULES.match(source)
    return alike is not None and not list_breaks(conditions, loop)


def _list_frames(place: Place) -> list[Frame]:
    """Return the user's lines of a rank, the outermost first."""
    return list(reversed(user_frames(_take_frames(place))))


def _take_frames(place: Place) -> Sequence[Frame]:
    """Return the frames of the call in question; where a rank waits for a device, those of the call in its queue."""
    return place.call.frames if place.call is not None and place.call.frames else place.stand.frames


def _list_way(place: Place) -> list[Frame]:
    """Return the user's lines to which a rank has come: not those of what it has queued on a device."""
    return list(reversed(user_frames(place.stand.frames))) if place.kind == "device" else _list_frames(place)


def _count_shared(one: Sequence[Frame], other: Sequence[Frame]) -> int:
    pairs = zip(one, other, strict=False)
    same = [(a.file, a.line, a.function) == (b.file, b.line, b.function) for a, b in pairs]
    return same.index(False) if False in same else len(same)


def _went_round(inside: Place, past: Place, early: Frame, late: Frame) -> bool:
    """Whether a rank came to its line in the next turn of a loop that the other is in as well.

    It has where the last collective that both have issued came from one line of the function in which they part, behind
    that of the rank and before that of the other; or where it has issued a call before both lines once more.

    Args:
        inside: the rank that waits where the other never came.
        past: the other.
        early: the line of the other in the function in which they part.
        late: the line of the rank that waits there.
    """
    lines = set()
    for call in (_find_before(inside), _find_before(past)):
        # The outermost frames of a call that is over are not all kept.
        own = [each for each in user_frames(call.frames) if _is_in(each, late)] if call is not None else []
        lines.add(own[-1].line if own else 0)
    loops = {spot_of(each) for each in past.stand.conditions if each.function in ("for", "while")}
    both = [
        each
        for each in inside.stand.conditions
        if each.function in ("for", "while") and spot_of(each) in loops and each.file == late.file
    ]
    if not both:
        return False
    return (len(lines) == 1 and early.line < lines.pop() < late.line) or _is_ahead(inside, past, early, late)


def _is_ahead(inside: Place, past: Place, early: Frame, late: Frame) -> bool:
    """Whether a rank has issued the last call before its line once more than the other: each turn issues one."""
    for call in reversed(past.stand.recent):
        line = _line_in(call, late)
        if line is not None and line.line <= early.line < late.line:
            same = [each for each in inside.stand.recent if each.series == call.series]
            there = _line_in(same[-1], late) if same else None
            return there is not None and there.line == line.line and call.ordinal == same[-1].ordinal + 1
    return False


def _line_in(call: Call, place: Frame) -> Frame | None:
    """Return the outermost line of a call in one function."""
    own = [each for each in user_frames(call.frames) if _is_in(each, place)]
    return own[-1] if own else None


def _is_in(frame: Frame, other: Frame) -> bool:
    return (frame.file, frame.function) == (other.file, other.function)


def _find_before(place: Place) -> Call | None:
    """Return the call of the same group that a rank issued before the one in which it is."""
    own = place.call
    if own is None:
        return None
    wanted = own.series, own.ordinal - 1
    return next((call for call in place.stand.recent if _number(call) == wanted), None)


def _issued(past: Place, inside: Place) -> bool:
    """Whether a rank has issued the other's call since it was last where it is now: then it is the other that skips."""
    site, own = called_at(inside), called_at(past)
    for call in reversed(past.stand.recent):
        line = user_line(call.frames)
        if line is None or (past.call is not None and _number(call) == _number(past.call)):
            continue
        if past.call is not None and past.call.op == BACKWARD and call.op == FORWARD:
            if (call.index, call.ordinal) == (past.call.index, past.call.ordinal - 1):
                return False  # a backward is no call of its own: it was there after the forward before
            continue
        if spot_of(line) == site:
            return True
        if spot_of(line) == own:
            return False
    return False


def _number(call: Call) -> tuple[str, int]:
    return call.series, call.ordinal


def _stands_there(place: Place) -> bool:
    """Whether the conditions of a rank are those of the call in question: not of one that it has issued before."""
    own = place.stand.call
    if place.call is not None and place.call.conditions:
        return place.stand.conditions == place.call.conditions
    if own is not None:
        return place.call is not None and _number(own) == _number(place.call)
    line = user_line(place.stand.frames)
    return line is not None and spot_of(line) == called_at(place)


def _is_known(place: Place, way: Sequence[Frame]) -> bool:
    """Whether what decides of each line of a way was searched for, and only the user's and torch's code is on it."""
    if not _stands_there(place) or len(way) > SEEN:
        return False
    if any(frame.source is None for frame in way):
        return False
    frames = _take_frames(place)
    outer = (way[0].file, way[0].line, way[0].function)
    for frame in frames:
        if (frame.file, frame.line, frame.function) == outer:
            return True
        if not frame.is_user and frame.whose != TORCH:
            return False
    return False


def is_alike(test: Frame) -> bool:
    """Whether each part of a condition has the same value on all ranks of a job."""
    text = _HEAD.sub("", (test.source or "").strip())
    return all(_ALIKE.search(part) for part in re.split(r"\band\b|\bor\b", text))
