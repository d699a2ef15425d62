"""What NCCL can say and the table of texts does not know: coverage of a source tree.

    python scripts/nccl_texts.py ~/nccl                       # a checkout
    python scripts/nccl_texts.py ~/nccl/.git --tag v2.27.7-1  # a release of a repository, nothing checked out
    python scripts/nccl_texts.py ~/aws-ofi-nccl --macro NCCL_OFI_WARN --prefix "NET/OFI "

It reads the format strings of ``WARN(…)`` in C and C++ sources and looks each up as a log would be looked up. Exit code
1 where less than ``--least`` percent are known. Nothing of a source tree is compiled or executed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.evidence.texts.matching import match_nccl

SOURCES = (".cc", ".h", ".cpp", ".cu", ".c", ".hpp", ".cuh")
FOLDERS = ("src/", "plugins/", "ext-", "include/")
"""Where the libraries stand; tests, examples and bindings print for developers."""
SKIPPED = re.compile(r"(^|/)(tests?|examples?|bindings|docs)/")
LONGEST = 4000
"""Characters of one call."""

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*")', re.DOTALL)
_NUMBER_FORMAT = re.compile(r"PRI[a-zA-Z0-9]+$")
_CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?([a-zA-Z%])")
_VALUES = dict.fromkeys("diu", "7") | dict.fromkeys("xX", "7f") | {"p": "0x7f00", "f": "1.5", "c": "x"}
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\t": "\t", r"\\": "\\"}


def read_tree(root: Path, tag: str | None) -> Iterator[tuple[str, str]]:
    """Yield path and text of the sources of a checkout, or of a release of a repository."""
    if tag is None:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if _wanted(name) and path.is_file():
                yield name, path.read_text(encoding="utf-8", errors="replace")
        return
    git = ["git", "-C", str(root)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", tag], capture_output=True, text=True, check=True
    )
    for name in filter(_wanted, listed.stdout.splitlines()):
        shown = subprocess.run([*git, "show", f"{tag}:{name}"], capture_output=True, check=True)
        yield name, shown.stdout.decode("utf-8", "replace")


def _wanted(name: str) -> bool:
    return name.endswith(SOURCES) and name.startswith(FOLDERS) and not SKIPPED.search(name)


def find_formats(source: str, macro: str) -> Iterator[tuple[str | None, str]]:
    """Yield the format string of each call of a macro, None where it is no literal, and how the call begins."""
    bare = _COMMENT.sub(lambda found: found[1] or " ", source)
    for call in re.finditer(rf"\b{macro}\s*\(", bare):
        argument = _first_argument(bare[call.end() : call.end() + LONGEST].replace("\\\n", " "))
        if argument is not None and argument.strip() != "...":
            yield _join_literals(argument), argument.strip()[:80]


def _first_argument(text: str) -> str | None:
    depth, place = 1, 0
    while place < len(text):
        if text[place] == '"':
            literal = _LITERAL.match(text, place)
            if literal is None:
                return None
            place = literal.end()
            continue
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0 or (depth == 1 and text[place] == ","):
            return text[:place]
        place += 1
    return None


def _join_literals(argument: str) -> str | None:
    """Return the literals of an argument as one; a macro between them is a field, the width of a number is none."""
    made, last = "", 0
    for literal in _LITERAL.finditer(argument):
        made += _between(argument[last : literal.start()].strip(), first=last == 0) + literal[1]
        last = literal.end()
    return made + _between(argument[last:].strip(), first=False) if last else None


def _between(text: str, *, first: bool) -> str:
    if not text or (first and text in ("(",)) or text in (")",):
        return ""
    return "d" if _NUMBER_FORMAT.fullmatch(text) else "%s"


def fill_in(form: str) -> str:
    """Return a text as a format string makes it: its first line with invented values."""
    for escape, character in _ESCAPES.items():
        form = form.replace(escape, character)
    text = _CONVERSION.sub(lambda found: "%" if found[1] == "%" else _VALUES.get(found[1], "text"), form)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def main() -> int:
    """Report the coverage; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="source tree, or with --tag a repository")
    parser.add_argument("--tag", help="release, branch or commit; else the files as they lie there")
    parser.add_argument("--macro", default="WARN", help="name of the macro that prints (WARN)")
    parser.add_argument("--prefix", default="", help="what the macro puts before each text")
    parser.add_argument("--least", type=float, default=95.0, metavar="PERCENT", help="least coverage (95)")
    options = parser.parse_args()
    known: set[str] = set()
    missing: dict[str, str] = {}
    for name, source in read_tree(options.root, options.tag):
        for form, start in find_formats(source, options.macro):
            text = options.prefix + fill_in(form) if form is not None else None
            if text is not None and match_nccl(text) is not None:
                known.add(form or "")
            else:
                missing.setdefault(form if form is not None else f"(no literal) {start}", name)
    count = len(known) + len(missing)
    if not count:
        print(f"no {options.macro}(…) was found", file=sys.stderr)
        return 2
    for form, name in sorted(missing.items(), key=lambda item: (item[1], item[0])):
        print(f"{name}: {form}")
    share = 100 * len(known) / count
    print(f"{len(known)} of {count} texts are known ({share:.1f} %)")
    return 0 if share >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
