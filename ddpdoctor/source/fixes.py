"""Corrections that are safe to write into a file: text that is put in at exact places, and nothing else.

Each is checked after it was made: the file has to parse, and to differ from before in that one argument, or in the test
around that one statement, alone.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpdoctor.source.files.reading import NEWLINE, Script, parse_script
from ddpdoctor.source.resolve.walking import name_last


@dataclass(frozen=True, slots=True)
class Wanted:
    """A finding that is to be corrected."""

    rule: str
    line: int
    column: int
    source: str
    """Text of the line when it was read."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Details of the finding, by name."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that is put into a file."""

    at: int
    """Byte before which it goes."""
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """What is put in, in the order of the file, and what that does to the tree and the call in it."""

    edits: tuple[Edit, ...]
    apply: Callable[[ast.Module, ast.Call], None]


SHARDED = re.compile(
    r"fsdp|fully_?shard|deepspeed|dtensor|device_?mesh|accelerat|checkpoint\.state_dict", re.IGNORECASE
)
"""Text of files in which ``state_dict`` may be a call that all ranks have to make."""
MOVES = frozenset({"copy", "copy2", "copyfile", "move", "rename", "replace", "symlink", "link"})
"""Functions of shutil and os that need a file to be whole."""
PLAIN = frozenset({"state_dict", "join", "format", "str", "Path", "fspath", "get_rng_state"})
"""Functions that may be called in what is saved."""


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


def is_correctable(rule: str, details: Mapping[str, object]) -> bool:
    """Whether there is a correction for what a rule reads."""
    return rule in CORRECTIONS and (rule != "write-raced" or details.get("kind") == "checkpoint")


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
        change = CORRECTIONS[wanted.rule](call, wanted, data, script.tree)
        if change is not None:
            edited = data
            for edit in reversed(change.edits):
                edited = edited[: edit.at] + edit.text.encode() + edited[edit.at :]
            _check(script.tree, call, change, edited, script.name)
            return edited
    raise Refused("the call has a form that --fix does not edit")


def _check(tree: ast.Module, call: ast.Call, change: Change, edited: bytes, name: str) -> None:
    """Return only where the edited file is the old one with that one change to that one call."""
    index = next(number for number, node in enumerate(ast.walk(tree)) if node is call)
    expected = copy.deepcopy(tree)
    same = next(node for number, node in enumerate(ast.walk(expected)) if number == index)
    assert isinstance(same, ast.Call)
    change.apply(expected, same)
    found = parse_script(edited, name, whatever=True).tree
    if found is None or ast.dump(found) != ast.dump(expected):
        raise Refused("the edited line would change its meaning")


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
    return Change((edit,), lambda _, same: same.keywords.append(ast.keyword(name, ast.Constant(value))))


def _map_location(call: ast.Call, wanted: Wanted, data: bytes, tree: ast.Module) -> Change | None:
    """``torch.load(path)`` gets ``map_location="cpu"``: who loads moves the values to its own device afterwards."""
    return _add_keyword(call, data, "map_location", "cpu") if name_last(call.func) == "load" else None


def _exist_ok(call: ast.Call, wanted: Wanted, data: bytes, tree: ast.Module) -> Change | None:
    """``os.makedirs(path)`` and ``Path.mkdir()`` get ``exist_ok=True``; os.mkdir has no such argument."""
    named = name_last(call.func)
    if named == "makedirs" or (named == "mkdir" and not call.args):
        return _add_keyword(call, data, "exist_ok", True)
    return None


def _both_spellings(call: ast.Call, wanted: Wanted, data: bytes, tree: ast.Module) -> Change | None:
    """``add_argument("--local_rank")`` gets the other spelling as well, which other versions of torch pass."""
    spelling, lacking = wanted.details.get("has"), wanted.details.get("lacks")
    if (
        name_last(call.func) != "add_argument"
        or not isinstance(spelling, str)
        or not isinstance(lacking, str)
    ):
        return None
    place = next((n for n, each in enumerate(call.args) if getattr(each, "value", None) == spelling), None)
    if place is None:
        return None
    at = _offset(data, call.args[place].end_lineno or 0, call.args[place].end_col_offset or 0)
    quote = data[at - 1 : at].decode()
    edit = Edit(at, f", {quote}{lacking}{quote}")
    return Change((edit,), lambda _, same: same.args.insert(place + 1, ast.Constant(lacking)))


def _first_rank_only(call: ast.Call, wanted: Wanted, data: bytes, tree: ast.Module) -> Change | None:
    """``torch.save(state, path)`` goes below a test on the rank, where rank 0 alone can do all of it."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    statement = next(
        (each for each in ast.walk(tree) if isinstance(each, ast.Expr) and each.value is call), None
    )
    if statement is None or name_last(call.func) not in ("save", "save_file"):
        return None
    if SHARDED.search(data.decode("utf-8")):
        raise Refused("its state may be sharded across the ranks")
    if any(name_last(each.func) in ("load", "load_file") for each in calls) or _is_used(call, calls):
        raise Refused("its file is also used in this function: add the `if` and a barrier after it by hand")
    inside = [each for each in ast.walk(call) if isinstance(each, ast.Call) and each is not call]
    if any(name_last(each.func) not in PLAIN for each in inside):
        raise Refused("what is saved is computed there, and other ranks may have to take part")
    group = _name_group(tree)
    test = f"not {group}.is_initialized() or {group}.get_rank() == 0"

    def apply(expected: ast.Module, same: ast.Call) -> None:
        for node in ast.walk(expected):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if not isinstance(block, list):
                    continue
                for place, each in enumerate(block):
                    if isinstance(each, ast.Expr) and each.value is same:
                        block[place] = ast.If(ast.parse(test, mode="eval").body, [each], [])

    return Change(_indent(statement, f"if {test}:", data), apply)


def _is_used(call: ast.Call, calls: Sequence[ast.Call]) -> bool:
    """Whether other calls are given the path of a save, or move and copy files."""
    paths = {ast.unparse(each) for each in (*call.args[1:2], *(k.value for k in call.keywords))}
    for each in calls:
        owner = each.func.value if isinstance(each.func, ast.Attribute) else None
        moves = isinstance(owner, ast.Name) and owner.id in ("shutil", "os") and name_last(each.func) in MOVES
        given = {ast.unparse(one) for one in (*each.args, *(k.value for k in each.keywords))}
        if each is not call and (moves or given & paths):
            return True
    return False


def _name_group(tree: ast.Module) -> str:
    """Return by which name a file knows torch.distributed everywhere."""
    names = []
    for each in tree.body:
        for alias in each.names if isinstance(each, (ast.Import, ast.ImportFrom)) else ():
            whole = f"{each.module}.{alias.name}" if isinstance(each, ast.ImportFrom) else alias.name
            if whole == "torch.distributed":
                names.append(alias.asname or (alias.name if isinstance(each, ast.ImportFrom) else whole))
            elif whole == "torch":
                names.append(f"{alias.asname or whole}.distributed")
    nodes = list(ast.walk(tree))
    bound = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    bound |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    for name in sorted(names, key=len):
        if name.split(".")[0] not in bound:
            return name
    raise Refused("torch.distributed is not imported under a name at the top of the file")


def _indent(statement: ast.Expr, head: str, data: bytes) -> tuple[Edit, ...]:
    """Return what puts a line before a statement that has its lines to itself, and the statement below it."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    lines = {number: _offset(data, number, 0) for number in range(first, last + 1)}
    after = data.find(b"\n", _offset(data, last, statement.end_col_offset or 0)) + 1 or len(data)
    start = _offset(data, first, statement.col_offset)
    margin = data[lines[first] : start].decode("utf-8")
    rest = data[_offset(data, last, statement.end_col_offset or 0) : after].strip()
    if margin.strip() or (rest and not rest.startswith(b"#")):
        raise Refused("it shares its line with something else")
    texts = [each for each in ast.walk(statement) if isinstance(each, (ast.Constant, ast.JoinedStr))]
    if any(each.lineno != each.end_lineno for each in texts):
        raise Refused("it contains a multi-line string")
    unit = "\t" if margin.endswith("\t") else "    "
    end = "\r\n" if data[:after].endswith(b"\r\n") else "\n"
    return (
        Edit(start, f"{head}{end}{margin}{unit}"),
        *(Edit(lines[number], unit) for number in range(first + 1, last + 1)),
    )


CORRECTIONS: dict[str, Callable[[ast.Call, Wanted, bytes, ast.Module], Change | None]] = {
    "load-unmapped": _map_location,
    "local-rank-option": _both_spellings,
    "directory-raced": _exist_ok,
    "write-raced": _first_rank_only,
}
"""Rule -> the correction. Only what hardly any program can depend on being otherwise."""
