"""Where a value ends: literals of Python, JSON, YAML and shells."""

from __future__ import annotations

import re

LONGEST = 2000
"""Characters of a literal without its end that are taken for it."""
_OPENING = re.compile(r"[rRbBuUfF]{0,2}(?P<quote>\"\"\"|'''|[\"'`])")
_CALL = re.compile(r"[A-Za-z_][\w.]{0,60}\([ \t\n]{0,20}(?=[rRbBuUfF]{0,2}[\"'])")
_MORE = re.compile(r"[ \t]{0,8}\+?[ \t]{0,8}(?:\\?\r?\n[ \t]{0,80}\+?[ \t]{0,8})?(?=[rRbBuUfF]{0,2}[\"'])")
"""What stands between literals that make one."""
_SCHEME = re.compile(
    r"(?i)(?:Bearer|Basic|Token|Digest|ApiKey|Key|AWS4-HMAC-SHA256)[ \t]{1,4}(?=[A-Za-z0-9])"
)
_BARE = re.compile(
    r"(?:\\\r?\n[ \t]{0,80}|\\[^\n]|[^\s,;&'\"`)\]}\\]|[,;&)\]}'\"`](?![\s,;&)\]}'\"`]|\Z"
    r"|[\w.%-]{1,64}[=:]|-|\\?[\"']))"
    r"{1,2000}"
)
"""A value without quotes: a comma or bracket belongs to it where something follows that is no name of a next value."""
_ANNOTATION = re.compile(r"[A-Za-z_][\w.\[\]| ]{0,60}=[ \t]{0,8}(?=[rRbBuUfF]{0,2}[\"'])")
_BLOCK = re.compile(r"[|>][+-]?[ \t]{0,8}\r?\n(?P<body>(?:[ \t]{1,80}[^\s][^\n]{0,400}(?:\n|\Z)){1,100})")
_NEXT_LINE = re.compile(r"[ \t]{0,8}\r?\n[ \t]{1,80}(?P<word>[^\s:=#'\"]{4,200})[ \t]{0,8}(?:\n|\Z)")
_BRACKET = re.compile(r"[(\[{][^()\[\]{}]{0,400}[)\]}]")
_LITERAL = re.compile(r"[rRbBuUfF]{0,2}(\"[^\"\n]{0,400}\"|'[^'\n]{0,400}')")
_PLAIN = re.compile(
    r"(?i)(?:true|false|none|null|nil|yes|no|on|off|undefined|enabled|disabled|required|missing|invalid|expired|empty|set"
    r"|str|int|bytes|bool|float|dict|list|any|optional\[.{0,40}|str\|none|\*{2,}|x{3,}|\.{3}"
    r"|<[\w /-]{0,40}>|\[[A-Z]{2,8}\]"
    r"|\$\{?\w{1,64}\}?|%\(?\w{0,40}\)?s|\{[\w.!:]{0,40}\}?)[.!?]?"
)
"""Switches, types, placeholders: no secret after any name."""
_CODE = re.compile(
    r"(?:self|cls|args|cfg|config|conf|opts?|options|settings|params|kwargs|os|getpass|secrets|hparams|flags|FLAGS)"
    r"[.\[(]|[A-Za-z_][A-Za-z_.]{1,80}\("
)
"""The start of an expression of source that names where a value comes from."""
_IDENTIFIER = re.compile(r"[A-Za-z_]{3,40}(?![\w-])")
_NUMBER = re.compile(r"[-+]?\d{1,6}(?:\.\d{1,6})?(?:[a-zA-Z%/]{1,4})?")
_FILE_PATH = re.compile(
    r"~?\.{0,2}/[\w./ +@-]{0,200}|[\w.-]{1,80}\.(?:json|ya?ml|txt|pem|key|crt|cfg|ini|toml|env|py|pt|model|bin)"
)


def read_literal(text: str, position: int) -> tuple[int, int] | None:
    """Return what stands between the quotes of literals that begin at a position, taken as one; None without any."""
    call = _CALL.match(text, position)
    opening = _OPENING.match(text, call.end() if call else position)
    if opening is None:
        return None
    first = opening.end()
    while True:
        last = _find_end(text, opening.end(), opening["quote"])
        more = _MORE.match(text, last + len(opening["quote"]))
        further = _OPENING.match(text, more.end()) if more is not None and opening["quote"] != "`" else None
        if further is None or further.end() - first > LONGEST or text[last : last + 1] not in "\"'":
            return first, last
        opening = further


def _find_end(text: str, position: int, quote: str) -> int:
    """Return where a literal ends; one whose end is not near, at the end of its line."""
    limit = min(len(text), position + LONGEST)
    place = position
    while True:
        place = text.find(quote, place, limit)
        if place < 0:
            break
        slashes = place - len(text[position:place].rstrip("\\")) - position
        if not slashes % 2:
            lines = text.count("\n", position, place)
            if len(quote) == 3 or lines <= 2 or text.count(":", position, place) == 0:
                return place
            break
        place += 1
    line = text.find("\n", position)
    return line if line >= 0 else len(text)


def read_bare(text: str, position: int) -> tuple[int, int] | None:
    """Return where a value without quotes begins, behind the name of a scheme, and ends."""
    scheme = _SCHEME.match(text, position)
    start = scheme.end() if scheme else position
    value = _BARE.match(text, start)
    if value is None:
        return None
    trimmed = value[0].rstrip(".")
    return (start, start + len(trimmed)) if trimmed else None


def skip_annotation(text: str, position: int) -> int:
    """Return where the literal begins behind a type, as in ``password: str = "x"``; else the position."""
    found = _ANNOTATION.match(text, position)
    return found.end() if found else position


def read_block(text: str, position: int) -> tuple[int, int] | None:
    """Return the lines of a block of YAML, or the one word of the next line."""
    block = _BLOCK.match(text, position)
    if block is not None:
        return block.start("body"), block.end("body")
    word = _NEXT_LINE.match(text, position)
    return word.span("word") if word is not None else None


def read_bracket(text: str, position: int) -> list[tuple[int, int]]:
    """Return what stands between the quotes of literals in a bracket that begins at a position."""
    bracket = _BRACKET.match(text, position)
    if bracket is None:
        return []
    found = _LITERAL.finditer(text, bracket.start(), bracket.end())
    return [(match.start(1) + 1, match.end(1) - 1) for match in found]


def is_plain(value: str) -> bool:
    """Whether a value is a switch, a type or a placeholder."""
    return not value.strip() or _PLAIN.fullmatch(value.strip()) is not None


def is_expression(value: str, name: str) -> bool:
    """Whether a value without quotes is source that names where the value comes from, such as ``token=token``."""
    first = _IDENTIFIER.match(value)
    same = first is not None and name.lower().endswith(first[0].lower().strip("_"))
    return _CODE.match(value) is not None or same


def is_number(value: str) -> bool:
    """Whether a value is a count, a size or a time."""
    return _NUMBER.fullmatch(value) is not None


def is_path(value: str) -> bool:
    """Whether a value names a file."""
    return _FILE_PATH.fullmatch(value) is not None
