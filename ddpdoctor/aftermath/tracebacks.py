"""Python's tracebacks in logs, also where several processes wrote between each other's lines."""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass, field

from ddpdoctor.aftermath.lines import Line
from ddpdoctor.evidence import Frame
from ddpdoctor.gather.scrub import scrub

HEADER = "Traceback (most recent call last)"
MESSAGE_LINES = 400
"""Lines of one message: C++ stacks in it have some 60 (`ddpdoctor.evidence.texts.matching.TEXT_LINES`)."""
LOOSE_LINES = 12
"""Lines of a message whose end nothing marks, because the lines have no prefix: CUDA's has five."""
FOREIGN_LINES = 60
"""Lines of others after which an unfinished traceback is given up."""
AGE_LINES = 2000
"""Lines of a log after which a traceback to which nothing was added is over."""
MOST_OPEN = 8
"""Tracebacks of one prefix that are read side by side."""
SOURCE_LIMIT = 300
"""Characters of a line of source."""
FRAMES = 1000
"""Frames of one traceback; Python folds recursions, whose limit is 1000."""

_FRAME = re.compile(
    r'^\s{0,40}File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,300}))?$'
)
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.<>]{0,200}?)(?:: ?(?P<message>.*))?$", re.DOTALL)
_BUILTIN = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Group)$")
"""How the names of Python's own exceptions end; those of others are printed with their module."""
_LOG = re.compile(
    r"^(?:[WEIF]\d{4} |\[[WEIF]\d{4} |\[rank\d|={5,}|-{5,}|\d{4}-\d\d-\d\d|\d\d:\d\d|Root Cause|Failures:|"
    r"\[[\d\-: ,.]{8,}\]|(?:INFO|WARNING|ERROR|DEBUG)\b|slurmstepd|srun:|Fatal Python)"
)
_LINKS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
_THREAD = re.compile(r"^Exception in thread (?P<thread>.{1,200}?):?$")
_SPAWNED = re.compile(r"^-- Process (?P<index>\d{1,6}) terminated with the following error:")
_IGNORED = ("Exception ignored in", "--- Logging error ---", "Exception ignored on")
"""Said before tracebacks that end nothing."""
_LOGGED = re.compile(r"(?:^|[\s\[|(])(?:ERROR|CRITICAL|WARNING)(?=[\s\]:|)])")
"""A logger's line: the traceback below it was caught and written down (logging.exception)."""
_GROUP = re.compile(r"^\s{0,60}\+ Exception Group " + re.escape(HEADER))
_MARGIN = re.compile(r"^\s{0,60}[|+] ?")
_MEMBER = re.compile(
    r"^(?P<margin>\s{0,60}(?:\+-)?\+)(?:-{8,40} (?P<number>\d{1,4}|\.\.\.) -{8,40}|-{12,80})$"
)
"""What stands around the members of a group of exceptions (CPython, Lib/traceback.py, _ExceptionPrintContext)."""
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")


@dataclass(slots=True)
class Part:
    """One exception of a chain."""

    number: int
    frames: list[Frame] = field(default_factory=list)
    """Outermost first, as printed."""
    type: str = ""
    message: list[str] = field(default_factory=list)
    link: str | None = None
    """How it belongs to the next one: cause, context or, in a group of exceptions, member."""


@dataclass(slots=True)
class Told:
    """One traceback with the exceptions before it."""

    parts: list[Part]
    line: Line
    """Where it began."""
    thread: str | None = None
    index: int | None = None
    """Process of torch.multiprocessing.spawn that the message speaks of."""
    last: int = 0
    """Line of its end."""
    interleaved: bool = False
    logged: bool = False
    """A logger wrote it."""


@dataclass(slots=True)
class _Block:
    line: Line
    parts: list[Part]
    state: str = "frames"
    """frames, message, after (the message has ended, a chain may follow), between (a chain does follow) or over (the
    other members of a group follow, of which only the first is read)."""
    thread: str | None = None
    ignored: bool = False
    logged: bool = False
    bare: bool = False
    """Begun without a header, as a syntax error of the script is."""
    foreign: int = 0
    quoting: bool = False
    """The message quotes another traceback."""
    last: int = 0
    interleaved: bool = False
    shows: bool = False
    """Whether it took the last frame, whose source text comes next."""
    group: bool = False
    """The exception is a group: its first member follows it, and each line has a margin."""
    end: int | None = None
    """Column at which the lines stand that part the members of the group."""
    inner: list[int] = field(default_factory=list)
    """Numbers of the parts with which its first member begins, and that one's where it is a group too."""


class TracebackReader:
    """Puts tracebacks together from lines; give it all lines while it is `busy`."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Block]] = {}
        self._before: dict[str, str] = {}
        self.done: list[Told] = []
        self.unfinished = 0
        """Tracebacks that never came to their end."""

    @property
    def busy(self) -> bool:
        """Whether a traceback is being read."""
        return bool(self._open)

    def feed(self, line: Line) -> None:
        """Take the next line."""
        blocks = self._open.get(line.key, [])
        group = next((block for block in blocks if block.group), None)
        if group is not None:
            if self._part_members(group, line):
                self._sweep(line.key)
                return
            line = dataclasses.replace(line, text=_MARGIN.sub("", line.text))
        text = line.text
        if HEADER in text and not self._quotes(blocks, text):
            self._begin(line, blocks)
        elif self._begin_bare(line, blocks):
            pass
        elif text.strip() or line.hooked:
            self._advance(blocks, line)
        else:
            for block in blocks:
                if block.state == "message" and not block.quoting and not self._expects_more(block):
                    block.state = "after"
        if text.strip():
            self._before[line.key] = text[:300]
        self._sweep(line.key)
        if line.number % AGE_LINES == 0:
            self._age(line.number)

    def _part_members(self, block: _Block, line: Line) -> bool:
        """Take a line that parts the members of a group, or one of a member that is not read."""
        found = _MEMBER.match(line.text)
        if found is None:
            if block.state != "over" or not _MARGIN.match(line.text):
                return False
            block.last, block.foreign = line.number, 0
            return True
        block.last, block.foreign = line.number, 0
        column = found.end("margin") - 1
        if found["number"] == "1" and block.state != "over":
            block.state, block.end = "between", column if block.end is None else block.end
            block.inner.append(len(block.parts))
        elif found["number"] is None and column == block.end:
            block.state = "after"
            _end_group(block)
        else:
            block.state = "over"
        return True

    def _age(self, number: int) -> None:
        """Close what nobody has written to for long: a process that has ended says nothing more."""
        for key in [key for key, blocks in self._open.items() if blocks[-1].last < number - AGE_LINES]:
            for block in self._open.pop(key):
                self._close(block)
        self._before.clear()

    def finish(self) -> list[Told]:
        """Return everything that was read, in the order of the log."""
        for key in list(self._open):
            for block in self._open.pop(key):
                self._close(block)
        self.done.sort(key=lambda told: told.line.number)
        return self.done

    def _quotes(self, blocks: list[_Block], text: str) -> bool:
        """Whether a header stands inside the message that is being read."""
        if not blocks or blocks[-1].state != "message":
            return False
        block = blocks[-1]
        last = block.parts[-1].message
        return "Original " + HEADER in text or bool(last and _SPAWNED.match(last[-1])) or block.quoting

    def _expects_more(self, block: _Block) -> bool:
        """torch.multiprocessing.spawn's message begins with an empty line."""
        part = block.parts[-1]
        return part.type.endswith("ProcessRaisedException") and not any(part.message)

    def _begin(self, line: Line, blocks: list[_Block]) -> None:
        for block in blocks:
            if block.state == "between":
                block.parts.append(Part(line.number))
                block.state, block.group = "frames", block.group or bool(_GROUP.match(line.text))
                return
        before = self._before.get(line.key, "")
        thread = _THREAD.match(before)
        ignored = any(word in before for word in _IGNORED)
        made = _Block(line, [Part(line.number)], thread=thread["thread"] if thread else None, ignored=ignored)
        made.last, made.group = line.number, bool(_GROUP.match(line.text))
        made.logged = not line.hooked and bool(_LOGGED.search(before))
        kept = [each for each in blocks if not self._over(each)]
        for each in kept:
            each.interleaved = made.interleaved = True
        self._open[line.key] = [*kept, made][-MOST_OPEN:]

    def _over(self, block: _Block) -> bool:
        """Close a block that a new header ends; one whose frames still come stays open beside it."""
        if block.state == "frames" and not block.bare and not block.line.hooked:
            return False
        self._close(block)
        return True

    def _begin_bare(self, line: Line, blocks: list[_Block]) -> bool:
        """Begin a syntax error of the script, which has no header, or skip what belongs to nothing."""
        if any(block.state in ("frames", "between") and not block.bare for block in blocks):
            return False
        found = _FRAME.match(line.text)
        if found and found["function"] is None:
            made = _Block(line, [Part(line.number, [_frame(found)])], bare=True, last=line.number)
            self._open[line.key] = [*blocks, made][-MOST_OPEN:]
            return True
        return not blocks

    def _advance(self, blocks: list[_Block], line: Line) -> None:
        reading = [block for block in blocks if block.state == "frames"]
        frame = _FRAME.match(line.text)
        if frame and reading:
            self._take_frame(reading, _frame(frame), line)
            return
        bare = next((block for block in blocks if block.group and block.state == "between"), None)
        if bare is not None and (named := _RAISED.match(line.text)):  # a member that was never raised
            bare.parts.append(Part(line.number, type=named["type"], message=[named["message"] or ""]))
            bare.state, bare.foreign, bare.last = "message", 0, line.number
            return
        link = _LINKS.get(line.text.strip())
        told = [block for block in blocks if block.state in ("message", "after")]
        if link is not None and told:
            told[0].parts[-1].link = link
            told[0].state, told[0].foreign = "between", 0
            return
        if reading and self._raise(reading, line):
            return
        self._continue(told, line)
        for block in blocks:
            block.foreign += 1

    def _take_frame(self, reading: list[_Block], made: Frame, line: Line) -> None:
        """Give a frame to the first traceback that has not got it: ranks that fail alike print the same ones."""
        place = (made.file, made.line, made.function)
        fresh = (
            b
            for b in reading
            if place not in [(f.file, f.line, f.function) for f in b.parts[-1].frames[-32:]]
        )
        block = next(fresh, reading[-1])
        if len(block.parts[-1].frames) < FRAMES:
            block.parts[-1].frames.append(made)
        block.foreign, block.last = 0, line.number
        for other in reading:
            other.shows = other is block

    def _raise(self, reading: list[_Block], line: Line) -> bool:
        """Take the line that names the exception."""
        text = line.text
        if text[:1].isspace():
            _show_source(next((block for block in reading if block.shows), reading[-1]), text.strip())
            return True
        found = _RAISED.match(text)
        ready = [block for block in reading if block.parts[-1].frames]
        if found is None or not ready or not ("." in found["type"] or _BUILTIN.search(found["type"])):
            return False
        if ready[0].bare and not found["type"].endswith(_SYNTAX):
            return False
        part = ready[0].parts[-1]
        part.type, part.message = found["type"].strip("."), [found["message"] or ""]
        ready[0].state, ready[0].foreign, ready[0].last = "message", 0, line.number
        ready[0].quoting = False
        return True

    def _continue(self, told: list[_Block], line: Line) -> None:
        """Take a further line of a message, where the line can be one."""
        block = next((each for each in told if each.state == "message"), None)
        if block is None:
            return
        message = block.parts[-1].message
        block.quoting = block.quoting or HEADER in line.text
        bounded = line.hooked or block.quoting or line.text[:1].isspace() or self._expects_more(block)
        if (_LOG.match(line.text) and not line.hooked) or len(message) >= MESSAGE_LINES:
            block.state = "after"
        elif bounded or len(message) < LOOSE_LINES:
            message.append(line.text)
            block.last, block.foreign = line.number, 0
            if block.quoting and not line.text[:1].isspace() and HEADER not in line.text:
                block.quoting = False  # the name of the quoted exception
        else:
            block.state = "after"

    def _sweep(self, key: str) -> None:
        kept = []
        for block in self._open.pop(key, []):
            limit = 6 if block.bare else FOREIGN_LINES
            if block.foreign > limit or (block.state == "after" and block.foreign > 3):
                self._close(block)
            else:
                kept.append(block)
        if kept:
            self._open[key] = kept

    def _close(self, block: _Block) -> None:
        _end_group(block)
        parts = [part for part in block.parts if part.type]
        if block.ignored:
            return
        if not parts:
            self.unfinished += not block.bare
            return
        spawned = [found for text in parts[-1].message if (found := _SPAWNED.match(text))]
        index = int(spawned[-1]["index"]) if spawned else None
        self.done.append(
            Told(parts, block.line, block.thread, index, block.last, block.interleaved, block.logged)
        )


def _end_group(block: _Block) -> None:
    """Put the first member of a group, with what it came from, before the group: what began earlier comes first."""
    if not block.group:
        return
    bounds = [0, *block.inner, len(block.parts)]
    chains = [block.parts[start:end] for start, end in itertools.pairwise(bounds)]
    for chain in chains[1:]:
        if chain:
            chain[-1].link = "member"
    before = [part for chain in chains for part in chain[:-1]]
    block.parts = [*before, *(chain[-1] for chain in reversed(chains) if chain)]
    block.group = False


def _show_source(block: _Block, text: str) -> None:
    """Keep the line of source below a frame; what stands below that only marks a part of it."""
    frames = block.parts[-1].frames
    if frames and frames[-1].source is None and text.strip("^~ ") and not text.startswith("[Previous line"):
        frames[-1] = dataclasses.replace(frames[-1], source=scrub(text)[:SOURCE_LIMIT])


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["file"], int(found["line"]), found["function"] or "<module>")


def read_traceback(text: str) -> Told | None:
    """Read the last traceback of a text, such as an error file holds; None where there is none."""
    reader = TracebackReader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.feed(Line(number, line, hooked=True))
    told = reader.finish()
    return told[-1] if told else None
