"""What torch's elastic agent says of its workers: the block of failures, and who exited how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from ddpdoctor.aftermath.lines import Line
from ddpdoctor.aftermath.tracebacks import Told, read_traceback

BLOCK_LINES = 20000
"""Lines after which a block that has no end is given up: 8 workers whose tracebacks have 1000 frames."""
MOST_ROWS = 16384
"""Ends of workers that are kept of one log: as many ranks as a job is reckoned with."""

_INDEX = re.compile(r"^\[(\d{1,6})\]:$")
_FIELD = re.compile(r"^\s{2}(?P<name>time|host|rank|exitcode|error_file|traceback)\s{0,8}: ?(?P<value>.*)$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,5})\)")
_EXIT = re.compile(r"(-?\d{1,10}) \(pid: (\d{1,10})\)")
_RULE = re.compile(r"^[=-]{3,}$")
_EXITED = re.compile(
    r"failed \(exitcode: (?P<status>-?\d{1,10})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"
)
_SUCCEEDED = re.compile(r"\[[^\]]{1,80}\] worker group successfully finished")
"""torch/distributed/elastic/agent/server/api.py, at level info."""
_OWN = re.compile(r"^[WEI]\d{4} \d\d:\d\d:\d\d\.\d+ (?P<pid>\d{1,10}) torch/distributed/")


@dataclass(slots=True)
class Failure:
    """One worker as the block of failures tells it."""

    line: int
    root: bool
    time: datetime | None = None
    """When it failed by the node's clock, without a zone, in whole seconds."""
    host: str = ""
    rank: int | None = None
    local_rank: int | None = None
    status: int | None = None
    """Negative for a signal."""
    pid: int = 0
    error_file: str | None = None
    words: list[str] = field(default_factory=list)

    def read_words(self) -> Told | None:
        """Return the traceback of its error file, where there was one."""
        # The template indents all but the first line by two.
        lines = [self.words[0], *(word.removeprefix("  ") for word in self.words[1:])] if self.words else []
        return read_traceback("\n".join(lines).rstrip())


@dataclass(frozen=True, slots=True)
class Exit:
    """One worker as the agent saw it exit, in one line."""

    line: int
    local_rank: int
    pid: int
    status: int


class AgentReader:
    """Reads the agent's own lines; give it all lines while it is `busy`."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[Failure]] = {}
        self._root: dict[str, bool] = {}
        self._since: dict[str, int] = {}
        self.failures: list[Failure] = []
        self.exits: list[Exit] = []
        self.exit_lines: list[int] = []
        self.pid: int | None = None
        self.succeeded = False
        """Whether it said that all of its workers ended well, and nothing else after that."""

    @property
    def busy(self) -> bool:
        """Whether a block is being read."""
        return bool(self._blocks)

    def reads(self, key: str) -> bool:
        """Whether the lines of a prefix are a block's: a traceback in it is a quotation."""
        return key in self._blocks

    def feed(self, line: Line) -> None:
        """Take the next line."""
        text = line.text
        if self.pid is None and (own := _OWN.match(text)):
            self.pid = int(own["pid"])
        if line.number % BLOCK_LINES == 0:
            for key in [key for key, since in self._since.items() if since < line.number - BLOCK_LINES]:
                self._close(key)
                del self._since[key]
        if "failed (exitcode: " in text and (found := _EXITED.search(text)):
            self.succeeded = False
            exit = Exit(line.number, int(found["local"]), int(found["pid"]), int(found["status"]))
            if len(self.exits) < MOST_ROWS:
                self.exits.append(exit)
                self.exit_lines.append(exit.line)
        elif _SUCCEEDED.search(text):
            self.succeeded = True
        if text.rstrip() == "Failures:":
            self._close(line.key)
            self._blocks[line.key], self._root[line.key], self._since[line.key] = [], False, line.number
        elif line.key in self._blocks:
            self._read(line)

    def _read(self, line: Line) -> None:
        text, rows = line.text.rstrip(), self._blocks[line.key]
        if line.number - self._since[line.key] > BLOCK_LINES:
            self._close(line.key)
        elif text.startswith("Root Cause"):
            self._root[line.key] = True
        elif _RULE.match(text):
            if text[0] == "=":
                self._close(line.key)
        elif _INDEX.match(text):
            rows.append(Failure(line.number, self._root[line.key]))
        elif rows and (found := _FIELD.match(text)):
            _set(rows[-1], found["name"], found["value"].strip())
        elif rows and rows[-1].words and (text.startswith("  ") or not text):
            rows[-1].words.append(text)

    def _close(self, key: str) -> None:
        rows = [row for row in self._blocks.pop(key, []) if row.pid]
        self.failures += rows[: MOST_ROWS - len(self.failures)]

    def finish(self) -> None:
        """Take what stands in blocks that were cut."""
        for key in list(self._blocks):
            self._close(key)


def _set(row: Failure, name: str, value: str) -> None:
    if name == "time":
        try:
            row.time = datetime.strptime(value, "%Y-%m-%d_%H:%M:%S")
        except ValueError:
            row.time = None
    elif name == "host":
        row.host = value
    elif name == "rank" and (found := _RANK.match(value)):
        row.rank, row.local_rank = int(found[1]), int(found[2])
    elif name == "exitcode" and (found := _EXIT.match(value)):
        row.status, row.pid = int(found[1]), int(found[2])
    elif name == "error_file":
        row.error_file = None if value == "<N/A>" else value
    elif name == "traceback":
        row.words = [value]
