"""faulthandler's dumps in logs: the Python stack of the moment at which a process crashed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddpdoctor.aftermath.lines import Line
from ddpdoctor.evidence import Frame

SIGNALS = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Floating-point exception": 8,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}
"""faulthandler's names (Modules/faulthandler.c) and Linux's numbers (signal(7))."""
FOREIGN_LINES = 40
FRAMES = 200
AGE_LINES = 2000
"""Lines of a log after which a dump is over: 100 threads of 100 frames are longer, but begin with the crash."""

_TITLE = "Fatal Python error: "
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}) in (?P<function>.{1,300})$')
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]{1,16}")


@dataclass(slots=True)
class Dump:
    """One dump."""

    line: Line
    title: str
    frames: list[Frame] = field(default_factory=list)
    """Innermost first, as printed."""
    modules: tuple[str, ...] = ()
    current: bool = False
    foreign: int = 0

    @property
    def signal(self) -> int | None:
        """The signal that it speaks of; None for a fatal error of Python's own."""
        return SIGNALS.get(self.title.removeprefix(_TITLE).strip())


class FaultReader:
    """Reads dumps; give it all lines while it is `busy`."""

    def __init__(self) -> None:
        self._open: dict[str, Dump] = {}
        self.done: list[Dump] = []

    @property
    def busy(self) -> bool:
        """Whether a dump is being read."""
        return bool(self._open)

    def feed(self, line: Line) -> None:
        """Take the next line."""
        text = line.text
        if line.number % AGE_LINES == 0:
            for key in [
                key for key, dump in self._open.items() if dump.line.number < line.number - AGE_LINES
            ]:
                self._close(key)
        if text.startswith(_TITLE):
            self._close(line.key)
            self._open[line.key] = Dump(line, text.strip()[:300])
            return
        dump = self._open.get(line.key)
        if dump is None:
            return
        if thread := _THREAD.match(text):
            dump.current = thread["current"] == "Current thread" and not dump.frames
        elif text.startswith("Extension modules: "):
            names = text.partition(":")[2].rpartition(" (total")[0]
            dump.modules = tuple(name.strip() for name in names.split(",") if name.strip())
            self._close(line.key)
        elif found := _FRAME.match(text):
            if dump.current and len(dump.frames) < FRAMES:
                dump.frames.append(Frame(found["file"], int(found["line"]), found["function"]))
        else:
            dump.foreign += bool(text.strip())
            if dump.foreign > FOREIGN_LINES:
                self._close(line.key)

    def _close(self, key: str) -> None:
        dump = self._open.pop(key, None)
        if dump is not None:
            self.done.append(dump)

    def finish(self) -> None:
        """Take what was cut."""
        for key in list(self._open):
            self._close(key)
