"""Makes the mutants of a source and asks `lint` about each."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import libcst as cst

from tests.mutants.operators import OPERATORS, Operator
from tests.mutants.programs import Program, find_programs, own_files
from tests.mutants.reading import Said, read
from tests.mutants.sources import Source
from tests.mutants.syntax import Edit, File, apply, places

MOST_PROGRAMS = 4
"""Of one source: the largest by imports."""
MOST_MUTANTS = 12
"""Of one source, each by another operator: which ones is decided by a hash, so that nobody chooses."""
SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake in one file, and what was said of it."""

    source: str
    half: str
    operator: str
    file: str
    line: int
    """Where the text changed."""
    codes: tuple[str, ...]
    found: bool
    """A finding of one of the codes that the correct program did not have."""
    placed: bool
    """It names a line where it is right."""
    severe: bool
    """It has at least the severity that it should."""
    others: tuple[str, ...]
    """New findings of other codes."""
    undecided: str
    """Why it does not count."""
    before: str
    after: str
    """The changed lines."""
    asked: bool = False
    """A question of one of the codes that the correct program did not have, where nothing was found."""


@dataclass(slots=True)
class Result:
    """What was seen of one source."""

    name: str
    half: str
    version: str
    programs: int = 0
    files: int = 0
    findings: list[Said] = field(default_factory=list)
    """Warnings and errors of the correct code."""
    mutants: list[Mutant] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return the form for JSON."""
        return asdict(self)


def read_results(path: Path) -> list[Result]:
    """Read what was written as JSON.

    Args:
        path: of the file.
    """
    results = []
    for entry in json.loads(path.read_text()):
        findings = [
            Said(**{**said, "lines": tuple(map(tuple, said["lines"]))}) for said in entry.pop("findings")
        ]
        mutants = [
            Mutant(**{**mutant, "codes": tuple(mutant["codes"]), "others": tuple(mutant["others"])})
            for mutant in entry.pop("mutants")
        ]
        results.append(Result(**entry, findings=findings, mutants=mutants))
    return results


def try_source(source: Source, only: Sequence[str] = (), most: int = MOST_MUTANTS) -> Result:
    """Lint a source, then each of its mutants.

    Args:
        source: correct code.
        only: names of operators; none are all.
        most: mutants, none twice by one operator in one script.
    """
    result = Result(source.name, source.half, source.version)
    programs = find_programs(source.root)[:MOST_PROGRAMS]
    result.programs = len(programs)
    chosen = [OPERATORS[name] for name in only] or list(OPERATORS.values())
    chosen.sort(key=lambda operator: hashlib.sha256(f"{source.name} {operator.name}".encode()).digest())
    made: set[str] = set()
    seen: set[tuple[str, str, int]] = set()
    for program, own in own_files(programs):
        correct = read(source.root, program.files)
        result.files += len(own)
        for said in correct:
            if said.severity != "info" and (key := (said.code, said.file, said.line)) not in seen:
                seen.add(key)
                result.findings.append(said)
        for operator, file, edit in _choose(program, own, chosen, made):
            if len(made) >= most:
                break
            mutant = _try_edit(source, program, correct, operator, file, edit)
            if mutant is not None:
                made.add(operator.name)
                result.mutants.append(mutant)
    return result


def _choose(
    program: Program, own: Sequence[str], operators: Sequence[Operator], made: set[str]
) -> Iterator[tuple[Operator, File, Edit]]:
    texts = [(program.root / name).read_text(encoding="utf-8", errors="replace") for name in program.files]
    whole = "\n".join(texts)
    files = [File(name, text, whole) for name, text in zip(program.files, texts, strict=True) if name in own]
    files = [file for file in files if _matters(file) and _parses(file)]
    for operator in operators:
        if operator.name in made:
            continue
        found = [(file, edit) for file in files for edit in operator.find(file)]
        found.sort(key=lambda pair: _order(pair[0], pair[1]))
        for file, edit in found:
            if operator.name not in made:
                yield operator, file, edit


def _try_edit(
    source: Source, program: Program, correct: Sequence[Said], operator: Operator, file: File, edit: Edit
) -> Mutant | None:
    text = apply(file, edit)
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    if text == file.text:
        return None
    right, moved = places(file, edit, text)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in program.files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if name == file.name:
                (root / name).write_text(text)
            else:
                shutil.copyfile(source.root / name, root / name)
        said = read(root, program.files)
    known = {
        (
            each.code,
            each.file,
            moved.get(each.line, -1) if each.file == file.name else each.line,
            each.question,
        )
        for each in correct
    }
    # What was asked of the correct code and is now found was found.
    new = [
        each
        for each in said
        if (each.code, each.file, each.line, False) not in known
        and not (each.question and (each.code, each.file, each.line, True) in known)
    ]
    hits = [each for each in new if each.code in operator.codes and not each.question]
    asked = not hits and any(each.code in operator.codes for each in new)
    placed = [each for each in hits if any(name == file.name and line in right for name, line in each.lines)]
    least = SEVERITIES.index(operator.severity)
    old_text, new_text = _changed(file.text, text)
    return Mutant(
        source.name,
        source.half,
        operator.name,
        file.name,
        min(right, default=0),
        operator.codes,
        bool(hits),
        bool(placed),
        any(SEVERITIES.index(each.severity) >= least for each in hits),
        tuple(
            sorted({each.code for each in new if each.code not in operator.codes and each.severity != "info"})
        ),
        operator.undecided or edit.undecided,
        old_text,
        new_text,
        asked,
    )


def _changed(old: str, new: str) -> tuple[str, str]:
    """Return the part that differs of two texts, with three lines around it."""
    one, two = old.splitlines(), new.splitlines()
    start = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
    end = next(
        (i for i, (a, b) in enumerate(zip(reversed(one), reversed(two), strict=False)) if a != b),
        min(len(one), len(two)),
    )
    end = min(end, len(one) - start, len(two) - start)
    first = max(start - 3, 0)
    return (
        "\n".join(one[first : len(one) - end + 3]),
        "\n".join(two[first : len(two) - end + 3]),
    )


def _order(file: File, edit: Edit) -> bytes:
    """Return what puts the places of an operator in an order that nobody chose."""
    node = next(iter(edit.table))
    return hashlib.sha256(f"{file.name}:{file.code(node)}".encode()).digest()


def _matters(file: File) -> bool:
    words = ("torch", "accelerat", "distributed", "dist.", "__main__", "sampler")
    return any(word in file.text for word in words)


def _parses(file: File) -> bool:
    try:
        return bool(file.wrapper)
    except (cst.ParserSyntaxError, RecursionError):
        return False
