"""Where calls come from: the user's own lines, each place with a number that stands for it in the ring.

To tell whose a frame is costs more than to compare it with the one that was there the last time, so the way outwards
from each line is remembered: mostly it is the same again.
"""

from __future__ import annotations

from _thread import get_ident

from . import describe, frames, journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

FRAMES = 12
THREAD_FRAMES = 32
"""The same of a call in a library's thread: out to where the thread was started."""
MOST = 4000
"""Sites that get a number, and ways that are remembered; later sites are number 0."""


class Sites:
    """The places that a process was seen to call from."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._ways: dict[int, tuple[int, tuple[tuple[CodeType, int], ...], bool]] = {}
        """Place in the code of a first frame -> number of the site, what `frames.list_way` returns; the latest one."""

    def find(self, frame: FrameType | None) -> int:
        """Return the number of the user's own lines that a call comes from; 0 where there are none.

        Args:
            frame: What has made the call, or was called on the way to it.
        """
        if frame is None:
            return 0
        known = self._ways.get(frame.f_lasti)
        if known is None:
            return self._learn(frame)
        number, way, outermost = known
        each: FrameType | None = frame
        for code, at in way:
            # Each look at f_code is an audit event.
            if each is None or (at >= 0 and each.f_lasti != at) or each.f_code is not code:
                return self._learn(frame)
            each = each.f_back
        return self._learn(frame) if outermost and each is not None else number

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
            site = {"number": number, "frames": describe.list_stack(first)[:most]}
            journal.write("site", {**site, "foreign": True} if foreign else site)
        if not foreign:
            way, outermost = frames.list_way(frame)
            if way and (len(self._ways) < MOST or frame.f_lasti in self._ways):
                self._ways[frame.f_lasti] = number, way, outermost
        return number


def _find_thread(frame: FrameType) -> tuple[FrameType | None, tuple[object, ...]]:
    """Return the frame of a call in a thread that a library has started, where no line is the user's, and its key."""
    from . import hooks

    if get_ident() == hooks.main_thread:
        return None, ()
    return frame, (id(frame.f_code), frame.f_lasti, get_ident())
