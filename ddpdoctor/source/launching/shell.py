"""Commands of a shell script, with the variables that the script itself sets to literal values.

No shell is started. What only a run could tell (other variables, substitutions, files that are sourced) keeps its
dollar sign, and whoever reads the word says nothing of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MOST_JOINED = 200
"""Lines of one command: a quotation that is not closed ends there."""
SUBSTITUTED = "$_"
"""Stands for the output of a command."""
SEPARATORS = frozenset({";", ";;", "&", "&&", "||", "|", "|&", "(", ")"})
OPENS = frozenset({"if", "for", "while", "until", "case", "select"})
CLOSES = frozenset({"fi", "done", "esac"})
PASSED = frozenset(
    {"then", "do", "else", "elif", "!", "time", "exec", "nohup", "command", "env", "sudo", "eval"}
)
"""Words before a command that change nothing of what is read here."""
SETS = frozenset({"export", "declare", "typeset", "local", "readonly"})
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=\((.*)\)\s*", re.DOTALL)
_USED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})")
_HERE = re.compile(r"<<-?\s*([\"']?)([A-Za-z_]\w*)\1")
_PLAIN = re.compile(r"[\w\s./:=,+@%${}\[\]-]*")
"""Values that can be put into a command as they stand."""


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command."""

    words: tuple[str, ...]
    """What is called and its arguments; a dollar sign stands in what is not known."""
    first: int
    """Its first line."""
    last: int
    variables: dict[str, tuple[str, int]] = field(default_factory=dict)
    """What is exported to it by the script or given before it, with the line of each."""
    background: bool = False
    """Whether the script goes on while it runs."""
    loops: tuple[int, ...] = ()
    """The lines of the loops around it."""
    conditional: bool = False
    """Whether it stands in a branch or a function."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that the script sets for what it starts."""

    name: str
    value: str
    line: int
    conditional: bool


@dataclass(slots=True)
class ShellScript:
    """What a script does, in order of its lines."""

    commands: list[Command] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    """Exported variables, and those given to one command."""
    directives: list[tuple[str, int]] = field(default_factory=list)
    """The arguments of ``#SBATCH`` lines."""
    late: list[int] = field(default_factory=list)
    """Lines of ``#SBATCH`` behind the first command, which sbatch does not read."""


def read_shell(lines: Sequence[str]) -> ShellScript:
    """Return the commands of a script.

    Args:
        lines: of the file.
    """
    reader = _Reader()
    for first, last, text in _join_lines(lines, reader.script):
        reader.read(text, first, last)
    return reader.script


def is_known(word: str) -> bool:
    """Whether a word is written out."""
    return "$" not in word and "`" not in word


def _join_lines(lines: Sequence[str], script: ShellScript) -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and text of each command line; bodies of here-documents are left out."""
    number, started = 0, False
    while number < len(lines):
        first = number
        text = lines[number]
        number += 1
        if text.startswith("#SBATCH") and started:
            script.late.append(number)
        elif text.startswith("#SBATCH"):
            script.directives.append((text.removeprefix("#SBATCH").split(" #")[0].strip(), number))
        text = _without_comment(text)
        while number < len(lines) and number - first < MOST_JOINED and _is_open(text):
            joined = text[:-1] + " " if text.endswith("\\") else text + "\n"
            text = joined + _without_comment(lines[number])
            number += 1
        for _, word in _HERE.findall(text):
            while number < len(lines) and lines[number].strip() != word:
                number += 1
            number += 1
        if text.strip():
            started = True
            yield first + 1, number, text


def _is_open(text: str) -> bool:
    """Whether a command goes on in the next line: a backslash, a quotation or the brackets of an array."""
    if text.endswith("\\"):
        return True
    if re.match(r"\s*(?:export\s+)?\w+\+?=\(", text) and text.count("(") > text.count(")"):
        return True
    try:
        shlex.split(_without_substitutions(text))
    except ValueError:
        return True
    return False


def _without_comment(line: str) -> str:
    quote = ""
    for place, char in enumerate(line):
        if quote:
            quote = "" if char == quote and line[place - 1] != "\\" else quote
        elif char in "\"'" and (place == 0 or line[place - 1] != "\\"):
            quote = char
        elif char == "#" and (place == 0 or line[place - 1] in " \t;"):
            return line[:place].rstrip()
    return line.rstrip()


def _without_substitutions(text: str) -> str:
    """Return a text in which ``$(…)`` and backticks are one word each."""
    text = re.sub(r"`[^`\n]*`", SUBSTITUTED, text)
    while (start := text.find("$(")) >= 0:
        depth, end = 0, start + 1
        for end in range(start + 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                break
        text = text[:start] + SUBSTITUTED + text[end + 1 :]
    return text


class _Reader:
    """Reads one command line after the other, and knows what is set so far."""

    def __init__(self) -> None:
        self.script = ShellScript()
        self._values: dict[str, str | None] = {}
        self._exported: dict[str, tuple[str, int]] = {}
        self._blocks: list[tuple[str, int]] = []

    def read(self, text: str, first: int, last: int) -> None:
        text = _without_substitutions(text)
        array = _ARRAY.fullmatch(text)
        if array is not None:
            self._set(array[1], " ".join(self._expand(array[2]).split()).replace('"', ""))
            return
        try:
            lexer = shlex.shlex(self._expand(text), posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, ""
            tokens = list(lexer)
        except ValueError:
            return
        words: list[str] = []
        for token in [*tokens, ";"]:
            if token in SEPARATORS:
                self._take(words, first, last, token)
                words = []
            else:
                words.append(token)

    @property
    def _conditional(self) -> bool:
        return any(kind not in ("for", "while", "until") for kind, _ in self._blocks)

    def _expand(self, text: str) -> str:
        def put(match: re.Match[str]) -> str:
            value = self._values.get(match[1] or match[2])
            return match[0] if value is None else value

        return _USED.sub(put, text)

    def _set(self, name: str, value: str) -> None:
        plain = _PLAIN.fullmatch(value) is not None and not self._blocks
        self._values[name] = value.replace("\n", " ") if plain else None

    def _take(self, words: list[str], first: int, last: int, end: str) -> None:
        while words and (words[0] in PASSED or words[0] in OPENS | CLOSES or words[0] in "{}"):
            word = words.pop(0)
            if word in OPENS:
                self._blocks.append((word, first))
                if word in ("for", "select", "case"):
                    for name in words[:1]:
                        self._values[name] = None
                    return
            elif (word in CLOSES or word == "}") and self._blocks:
                self._blocks.pop()
            elif word == "{":
                self._blocks.append(("{", first))
        if "()" in words[1:3] or words[:1] == ["function"]:
            self._blocks.append(("{", first))
            return
        words = _without_redirections(words)
        exports = bool(words) and words[0] in SETS
        own: dict[str, tuple[str, int]] = {}
        rest = words[1:] if exports else words
        while rest and (match := _ASSIGNED.fullmatch(rest[0])) is not None:
            own[match[1]] = (match[3], first)
            if match[2]:
                own[match[1]] = (f"{SUBSTITUTED}{match[3]}", first)
            rest = rest[1:]
            if exports:
                rest = [each for each in rest if not each.startswith("-")]
        if exports or not rest:
            for name, (value, line) in own.items():
                self._set(name, value)
                if exports:
                    self._exported[name] = (value, line)
                    self._note(name, value, line)
            for name in rest if exports else ():
                known = self._values.get(name)
                if known is not None:
                    self._exported[name] = (known, first)
                    self._note(name, known, first)
            return
        if rest[0] in ("unset", "read"):
            for name in rest[1:]:
                self._values[name] = None
                self._exported.pop(name, None)
            self.script.settings = [each for each in self.script.settings if each.name not in rest[1:]]
        for name, (value, line) in own.items():
            self._note(name, value, line)
        loops = tuple(line for kind, line in self._blocks if kind in ("for", "while", "until"))
        variables = {**self._exported, **own}
        command = Command(tuple(rest), first, last, variables, end == "&", loops, self._conditional)
        self.script.commands.append(command)

    def _note(self, name: str, value: str, line: int) -> None:
        self.script.settings.append(Setting(name, value, line, self._conditional))


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif set(word) <= set("<>&|") and set(word) & set("<>"):
            skip = True
            if kept and kept[-1].isdigit():
                kept.pop()
        else:
            kept.append(word)
    return kept
