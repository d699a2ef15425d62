"""A terminal as far as ``run --live`` and the jobs of its tests use one: a screen, a scrolling region, a cursor."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

SEQUENCE = re.compile(
    r"\x1b\[([0-?]*)([@-~])|\x1b([78cDM])|\x1b[^\x18]*\x18|([\x00-\x1a\x1c-\x1f])|([^\x1b])", re.S
)


class Terminal:
    """What a person would see of the bytes that were written.

    Sequences: CUP, CUU, ED (0, 2), EL (0, 2), SGR (ignored), DECSTBM, DECSC, DECRC, IND, RIS, the other screen.
    """

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        """Lines that have left the screen at its top, as a terminal's history keeps them."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._reset()

    def _reset(self) -> None:
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = 0
        self.margins = (0, self.rows - 1)
        self._saved = (0, 0)

    @property
    def lines(self) -> list[str]:
        """The screen, line by line."""
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        """The screen without the empty lines at its end."""
        return "\n".join(self.lines).rstrip("\n")

    @property
    def history(self) -> str:
        """All lines of the job's part: those that have scrolled away and those above the bottom margin."""
        return "\n".join([*self.scrolled, *self.lines[: self.margins[1] + 1]]).rstrip("\n")

    def feed(self, data: bytes) -> None:
        """Show what is written."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        place = 0
        while place < len(text):
            found = SEQUENCE.match(text, place)
            if found is None:  # the rest of a sequence is still to come
                assert len(text) - place < 100, text[place:]
                self._rest = text[place:]
                return
            place = found.end()
            parameters, final, escape, control, character = found.groups()
            if final:
                self._control(parameters, final)
            elif escape:
                self._escape(escape)
            elif control:
                self._move(control)
            elif character:
                self._put(character)

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.column = 0
            self._down()
        self.cells[self.row][self.column] = character
        self.column += 1

    def _move(self, control: str) -> None:
        if control == "\n":
            self._down()
        elif control == "\r":
            self.column = 0
        else:
            assert control in "\x07\x18", repr(control)

    def _down(self) -> None:
        top, bottom = self.margins
        if self.row == bottom:
            gone = self.cells.pop(top)
            if top == 0:
                self.scrolled.append("".join(gone).rstrip())
            self.cells.insert(bottom, [" "] * self.columns)
        else:
            self.row = min(self.row + 1, self.rows - 1)

    def _escape(self, letter: str) -> None:
        if letter == "7":
            self._saved = (self.row, self.column)
        elif letter == "8":
            self.row, self.column = self._saved
        elif letter == "D":
            self._down()
        else:
            assert letter == "c", letter
            self._reset()

    def _control(self, parameters: str, final: str) -> None:
        if final == "m":
            return
        if parameters.startswith("?"):
            assert parameters == "?1049", parameters
            return
        numbers = [int(each) for each in parameters.split(";") if each]
        first = numbers[0] if numbers else 0
        actions: dict[str, Callable[[], None]] = {
            "H": lambda: self._go(*numbers),
            "A": lambda: setattr(self, "row", max(self.margins[0], self.row - max(1, first))),
            "K": lambda: self._clear_line(first),
            "J": lambda: self._clear_screen(first),
            "r": lambda: self._set_margins(*numbers),
        }
        actions[final]()

    def _go(self, row: int = 1, column: int = 1) -> None:
        self.row, self.column = min(row, self.rows) - 1, min(column, self.columns) - 1

    def _set_margins(self, top: int = 1, bottom: int = 0) -> None:
        self.margins = (top - 1, (bottom or self.rows) - 1)
        self._go()

    def _clear_line(self, what: int) -> None:
        begin = 0 if what == 2 else self.column
        self.cells[self.row][begin:] = [" "] * (self.columns - begin)

    def _clear_screen(self, what: int) -> None:
        if what == 0:
            self._clear_line(0)
        for row in range(0 if what == 2 else self.row + 1, self.rows):
            self.cells[row] = [" "] * self.columns

    def resize(self, columns: int, rows: int) -> None:
        """Take another size, as xterm does: what is too much at the bottom goes, unless the cursor stands there."""
        while len(self.cells) > rows:
            if self.row < len(self.cells) - 1:
                self.cells.pop()
            else:
                self.scrolled.append("".join(self.cells.pop(0)).rstrip())
                self.row -= 1
        self.cells += [[" "] * columns for _ in range(rows - len(self.cells))]
        self.cells = [(row + [" "] * columns)[:columns] for row in self.cells]
        self.columns, self.rows, self.margins = columns, rows, (0, rows - 1)
        self.column = min(self.column, columns - 1)
