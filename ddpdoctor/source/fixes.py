"""Corrections that are safe to write into a file: an argument more in a call, at the exact place, and nothing else.

Each is checked after it was made: the file has to parse, and to differ from before in that one argument alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpdoctor.source.reading import NEWLINE, Script, parse_script


@dataclass(frozen=True, slots=True)
class Wanted:
    """A finding that is to be corrected."""

    rule: str
    line: int
    column: int
    source: str
    """Text of the line when it was read."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that is put into a file."""

    at: int
    """Byte before which it goes."""
    text: str


Change = tuple[Edit, Callable[[ast.Call], None]]
"""An edit, and what it does to the call in the tree."""


class Refused(Exception):
    """A correction that cannot be made safely; the text says why."""


def correct(data: bytes, name: str, wanted: Sequence[Wanted]) -> tuple[bytes, list[str]]:
    """Return a file with all corrections that can be made, and why others were not.

    Args:
        data: the whole file.
        name: of the file.
        wanted: what is to be corrected.

    Raises:
        Refused: the file is not what was read, or cannot be edited at exact places.
    """
    script = _parse(data, name)
    for each in wanted:
        if " ".join(_text(script, each).split()) != " ".join(each.source.split()):
            raise Refused("it has changed since it was read")
    reasons = []
    # From the end on, so that the places of the others stay what they were.
    for each in sorted(wanted, key=lambda one: (one.line, one.column), reverse=True):
        try:
            data = _correct_one(data, script, each)
            script = _parse(data, name)
        except Refused as why:
            reasons.append(f"line {each.line}: {why}")
    return data, reasons


def is_correctable(rule: str) -> bool:
    """Whether there is a correction for what a rule reads."""
    return rule in CORRECTIONS


def _parse(data: bytes, name: str) -> Script:
    if name.endswith(".ipynb"):
        raise Refused("a notebook is not edited")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise Refused("not written in UTF-8") from problem
    script = parse_script(data, name, whatever=True)
    if script.tree is None:
        raise Refused(script.problem or "cannot be parsed")
    return script


def _text(script: Script, wanted: Wanted) -> str:
    return script.lines[wanted.line - 1].strip() if wanted.line <= len(script.lines) else ""


def _correct_one(data: bytes, script: Script, wanted: Wanted) -> bytes:
    assert script.tree is not None
    for call in ast.walk(script.tree):
        if not isinstance(call, ast.Call) or call.lineno != wanted.line:
            continue
        if script.place(call).column != wanted.column:
            continue
        change = CORRECTIONS[wanted.rule](call, wanted, data)
        if change is not None:
            edit, apply = change
            edited = data[: edit.at] + edit.text.encode() + data[edit.at :]
            _check(script.tree, call, apply, edited, script.name)
            return edited
    raise Refused("the call is written in a way that is not edited")


def _check(
    tree: ast.Module, call: ast.Call, apply: Callable[[ast.Call], None], edited: bytes, name: str
) -> None:
    """Return only where the edited file is the old one with that one change to that one call."""
    index = next(number for number, node in enumerate(ast.walk(tree)) if node is call)
    expected = copy.deepcopy(tree)
    same = next(node for number, node in enumerate(ast.walk(expected)) if number == index)
    assert isinstance(same, ast.Call)
    apply(same)
    found = parse_script(edited, name, whatever=True).tree
    if found is None or ast.dump(found) != ast.dump(expected):
        raise Refused("the edited line would mean something else")


def _offset(data: bytes, line: int, column: int) -> int:
    """Return where a line and column of a syntax tree lie in the file; columns are counted in bytes."""
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    text = data[start:].decode("utf-8")
    ends = [match.end() for match in NEWLINE.finditer(text)]
    before = text[: ends[line - 2]] if line > 1 else ""
    return start + len(before.encode()) + column


def _add_keyword(call: ast.Call, data: bytes, name: str, value: str | bool) -> Change | None:
    given = [*call.args, *(each.value for each in call.keywords)]
    if any(each.arg in (name, None) for each in call.keywords):
        return None
    shown = f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
    if given:
        last = max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
        edit = Edit(_offset(data, last.end_lineno or 0, last.end_col_offset or 0), f", {shown}")
    else:
        edit = Edit(_offset(data, call.end_lineno or 0, call.end_col_offset or 0) - 1, shown)
    return edit, lambda same: same.keywords.append(ast.keyword(name, ast.Constant(value)))


def _last_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _map_location(call: ast.Call, wanted: Wanted, data: bytes) -> Change | None:
    """``torch.load(path)`` gets ``map_location="cpu"``: who loads moves the values to its own device afterwards."""
    return _add_keyword(call, data, "map_location", "cpu") if _last_name(call) == "load" else None


def _exist_ok(call: ast.Call, wanted: Wanted, data: bytes) -> Change | None:
    """``os.makedirs(path)`` and ``Path.mkdir()`` get ``exist_ok=True``; os.mkdir has no such argument."""
    named = _last_name(call)
    if named == "makedirs" or (named == "mkdir" and not call.args):
        return _add_keyword(call, data, "exist_ok", True)
    return None


def _both_spellings(call: ast.Call, wanted: Wanted, data: bytes) -> Change | None:
    """``add_argument("--local_rank")`` gets the other spelling as well, which other versions of torch pass."""
    if _last_name(call) != "add_argument" or len(wanted.names) < 2:
        return None
    spelling, lacking = wanted.names[:2]
    place = next((n for n, each in enumerate(call.args) if getattr(each, "value", None) == spelling), None)
    if place is None:
        return None
    at = _offset(data, call.args[place].end_lineno or 0, call.args[place].end_col_offset or 0)
    quote = data[at - 1 : at].decode()
    edit = Edit(at, f", {quote}{lacking}{quote}")
    return edit, lambda same: same.args.insert(place + 1, ast.Constant(lacking))


CORRECTIONS: dict[str, Callable[[ast.Call, Wanted, bytes], Change | None]] = {
    "load-unmapped": _map_location,
    "local-rank-option": _both_spellings,
    "directory-raced": _exist_ok,
}
"""Rule -> the correction. Only what no program can depend on being otherwise."""
