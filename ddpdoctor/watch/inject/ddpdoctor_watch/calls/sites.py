"""Where calls come from: the user's own lines, each place with a number that stands for it in the ring.

To tell whose a frame is costs more than to compare it with the one that was there the last time, so the ways outwards
from each line are remembered: mostly it is one of them again. Sharded models make all their calls from one line of
torch's, for each layer in the forward and from hooks in the backward.
"""

from __future__ import annotations

from _thread import get_ident

from ..core import describe, frames, journal, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from ddpdoctor.facts import events

FRAMES = 12
THREAD_FRAMES = 32
"""Most frames that are kept of a call in a library's thread: out to where the thread was started."""
MOST, MOST_STACKS = 4000, 256
"""Sites that get a number, and first lines whose ways are remembered; later sites are number 0. Those whose frames are
kept."""
_WAYS = 8
"""Ways that are remembered of one line, the latest first."""


class Sites:
    """The places that a process was seen to call from."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[list[object]]] = {}
        """Number of a site -> its frames."""
        self._numbers: dict[object, int] = {}
        self._ways: dict[int, list[tuple[int, tuple[frames.Mark, ...], bool]]] = {}
        """Place in the code of a first frame -> number of the site, what `frames.list_way` returns."""

    def find(self, frame: FrameType | None) -> int:
        """Return the number of the user's own lines that a call comes from; 0 where there are none.

        Args:
            frame: What has made the call, or was called on the way to it.
        """
        if frame is None:
            return 0
        ways = self._ways.get(frame.f_lasti)
        for place, (number, way, outermost) in enumerate(ways or ()):
            each: FrameType | None = frame
            for code, at, names, line in way:
                if (
                    each is None
                    or (at >= 0 and each.f_lasti != at)
                    or (each.f_code is not code if names is None else each.f_globals is not names)
                    or (line and each.f_lineno != line)
                ):
                    break
                each = each.f_back
            else:
                if not outermost or each is None:
                    if place and ways is not None:
                        ways.insert(0, ways.pop(place))
                    return number
        return self._learn(frame)

    def _learn(self, frame: FrameType) -> int:
        """Find the number frame by frame, and remember the way."""
        first, place = frames.find_place(frame)
        most, foreign = FRAMES, first is None
        if foreign:
            first, place = _find_thread(frame)
            most = THREAD_FRAMES
        if first is None:
            return 0
        number = self._numbers.get(place)
        if number is None:
            if len(self._numbers) >= MOST:
                return 0
            number = self._numbers[place] = len(self._numbers) + 1
            site: events.Site = {"number": number, "frames": describe.list_stack(first)[:most]}
            if foreign:
                site["foreign"] = True
            journal.write("site", site)
            if number <= MOST_STACKS:
                self.stacks[number] = site["frames"]
        if not foreign:
            way, outermost = frames.list_way(frame)
            if way and (len(self._ways) < MOST or frame.f_lasti in self._ways):
                ways = self._ways.setdefault(frame.f_lasti, [])
                ways.insert(0, (number, way, outermost))
                del ways[_WAYS:]
        return number


def _find_thread(frame: FrameType) -> tuple[FrameType | None, tuple[object, ...]]:
    """Return the frame of a call in a thread that a library has started, where no line is the user's, and its key."""
    if get_ident() == process.main_thread:
        return None, ()
    return frame, (id(frame.f_code), frame.f_lasti, get_ident())
