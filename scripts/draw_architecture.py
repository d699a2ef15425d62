"""Draws docs/architecture.svg from the import graph, and the table of rooms in docs/architecture.md.

``python scripts/draw_architecture.py`` writes them; with ``--check`` it exits with 1 where one is not up to date.
Rows are the layers of the contract in pyproject.toml; an arrow stands for imports that no path of other arrows shows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

import grimp
from importlinter.application.use_cases import read_user_options
from importlinter.configuration import configure

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BEGIN, END = "<!-- rooms: made by scripts/draw_architecture.py -->\n", "<!-- end of rooms -->\n"
PACKAGES = {"ddpdoctor": "ddpdoctor", "ddpdoctor_checks": "checks/ddpdoctor_checks"}
CHECKS = "ddpdoctor_checks"
LEFT_OUT = ("text",)
"""Of the picture: nearly all rooms import it, and it imports none."""
WORDS = 34
"""Characters of a line in a box."""
WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, ROW = 920, 210, 72, 18, 116
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .name { font: 600 15px ui-monospace, monospace }
  .what { font-size: 11px; fill: #59636e }
  rect { fill: #f6f8fa; stroke: #818b98 }
  polyline { fill: none; stroke: #59636e; marker-end: url(#tip) }
  #tip path { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .what { fill: #9198a1 } rect { fill: #151b23; stroke: #656c76 }
    polyline { stroke: #9198a1 } #tip path { fill: #9198a1 }
  }
"""


@dataclass(frozen=True)
class Room:
    """A package of the engine, or the built-in checks."""

    name: str
    folder: Path
    what: str
    """First sentence of its docstring."""


def find_rooms(layers: Iterable[Iterable[str]]) -> dict[str, Room]:
    """Return the rooms that the layers name, the checks among them."""
    rooms = {}
    for name in (*(each for layer in layers for each in layer), CHECKS):
        folder = ROOT / PACKAGES[CHECKS] if name == CHECKS else ROOT / "ddpdoctor" / name
        if folder.is_dir():
            rooms[name] = Room(name, folder.relative_to(ROOT), read_purpose(folder))
    return rooms


def read_purpose(folder: Path) -> str:
    """Return the first line of a package's docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return text.split("\n")[0].replace("``", "`")


def say_shortly(text: str) -> str:
    """Return the part of a sentence that fits a box: before its colon, or behind it where one word stands before."""
    before, _, behind = text.partition(":")
    return re.split("[:;.]", behind.strip() if behind and " " not in before else before)[0]


def read_layers() -> list[list[str]]:
    """Return the layers of the engine from the contract, the highest first."""
    configure()
    for contract in read_user_options(str(ROOT / "pyproject.toml")).contracts_options:
        if contract.get("containers") == ["ddpdoctor"]:
            return [[name.strip().strip("()") for name in layer.split("|")] for layer in contract["layers"]]
    raise LookupError("pyproject.toml has no contract on the layers of ddpdoctor")


def find_imports(rooms: Mapping[str, Room]) -> set[tuple[str, str]]:
    """Return the pairs of rooms of which the first imports the second."""
    graph = grimp.build_graph(*PACKAGES)
    pairs = {
        (_room_of(module), _room_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return {(start, end) for start, end in pairs if start != end and {start, end} <= rooms.keys()}


def _room_of(module: str) -> str:
    first, _, rest = module.partition(".")
    return CHECKS if first == CHECKS else rest.partition(".")[0]


def reduce_arrows(imports: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows without those that a longer path shows already."""
    follow: dict[str, set[str]] = defaultdict(set)
    for start, end in imports:
        follow[start].add(end)

    def reach(start: str) -> set[str]:
        return set().union(*({end} | reach(end) for end in follow[start])) if follow[start] else set()

    return {
        (start, end)
        for start, ends in list(follow.items())
        for end in ends
        if not any(end in reach(other) for other in ends - {end})
    }


def place_rooms(layers: list[list[str]], rooms: Mapping[str, Room]) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of each box; the checks stand beside the row of the judge."""
    places: dict[str, tuple[float, float]] = {}
    rows = [[name for name in layer if name in rooms] for layer in layers]
    rows = [[*row, CHECKS] if "judge" in row else row for row in rows if row]
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * BOX_WIDTH - (len(row) - 1) * GAP) / 2
        for place, name in enumerate(row):
            places[name] = (left + place * (BOX_WIDTH + GAP), 12 + number * ROW)
    return places


def draw(layers: list[list[str]], rooms: Mapping[str, Room], arrows: Iterable[tuple[str, str]]) -> str:
    """Return the picture."""
    places = place_rooms(layers, rooms)
    height = max(top for _, top in places.values()) + BOX_HEIGHT + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        'aria-label="The rooms of ddpdoctor and which of them import which">',
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker>',
    ]
    parts += [draw_arrow(places[start], places[end]) for start, end in sorted(arrows)]
    for name, (left, top) in places.items():
        room = rooms[name]
        parts.append(f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        parts.append(f'<text class="name" x="{left + 12:g}" y="{top + 24:g}">{escape(name)}</text>')
        for number, line in enumerate(wrap(say_shortly(room.what), WORDS)[:2]):
            parts.append(
                f'<text class="what" x="{left + 12:g}" y="{top + 42 + 15 * number:g}">{escape(line)}</text>'
            )
    return "\n".join((*parts, "</svg>")) + "\n"


def draw_arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return the arrow between two boxes; one over several rows goes down beside those in between."""
    (left, top), (left_of_end, top_of_end) = start, end
    middle = top_of_end + BOX_HEIGHT / 2
    to_left = left > left_of_end
    side = left_of_end + (BOX_WIDTH if to_left else 0)
    if top == top_of_end:
        points = [(left + (0 if to_left else BOX_WIDTH), middle), (side, middle)]
    elif top_of_end - top > ROW and left == left_of_end:
        side, beside = left + BOX_WIDTH, left + BOX_WIDTH + GAP / 2
        points = [
            (side, top + BOX_HEIGHT / 2),
            (beside, top + BOX_HEIGHT / 2),
            (beside, middle),
            (side, middle),
        ]
    elif top_of_end - top > ROW:
        down = left + BOX_WIDTH * (0.8 if to_left else 0.2)
        points = [(down, top + BOX_HEIGHT), (down, middle), (side, middle)]
    else:
        lean = (left_of_end - left) * 0.2
        points = [
            (left + BOX_WIDTH / 2 + lean, top + BOX_HEIGHT),
            (left_of_end + BOX_WIDTH / 2 - lean, top_of_end),
        ]
    return f'<polyline points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'


def write_table(rooms: Mapping[str, Room]) -> str:
    """Return the table of rooms, and of those within them."""
    rows = ["| room | what it holds |", "|---|---|"]
    for room in rooms.values():
        rows.append(f"| [`{room.folder}`](../{room.folder}) | {room.what} |")
        folder = ROOT / room.folder
        for inner in sorted(path.parent for path in folder.glob("*/**/__init__.py")):
            rows.append(f"| &emsp;`{inner.relative_to(folder)}` | {read_purpose(inner)} |")
    return "\n".join(rows) + "\n"


def make_files() -> dict[Path, str]:
    """Return path -> text of the picture and the page."""
    layers = read_layers()
    rooms = find_rooms(layers)
    shown = {name: room for name, room in rooms.items() if name not in LEFT_OUT}
    page = DOCS / "architecture.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return {
        DOCS / "architecture.svg": draw(layers, shown, reduce_arrows(find_imports(shown))),
        page: f"{before}{BEGIN}\n{write_table(rooms)}\n{END}{after}",
    }


def main(arguments: list[str]) -> int:
    """Write the files, or compare them."""
    files = make_files()
    if "--check" not in arguments:
        for path, text in files.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not up to date: python scripts/draw_architecture.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
