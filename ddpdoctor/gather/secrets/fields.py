"""Secrets that a name announces: variables, options, fields of JSON and YAML, headers, netrc, and words of prose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.gather.secrets.shapes import count_changes
from ddpdoctor.gather.secrets.spans import Span
from ddpdoctor.gather.secrets.values import (
    is_expression,
    is_number,
    is_path,
    is_plain,
    read_bare,
    read_block,
    read_bracket,
    read_literal,
    skip_annotation,
)
from ddpdoctor.text.secret_names import NONE, STRONG, rate_name

_HINT = re.compile(
    "(?i)pass|pw|secret|token|key|auth|cred|jwt|otp|sig|hmac|session|sid|csrf|dsn|pat|cookie|bearer|contrase|sharedacc|nectionstr"
)
"""One of these is in every name that `rate_name` knows."""
_NAME = re.compile(r"[\w.@$-]{1,100}")
_GAP = re.compile(
    r"(?P<closed>\\?[\"'`]?\]?\)?)(?:[ \t]{0,8}(?P<sign>:=|=>|->|={1,2}|!=)[ \t]{0,8}(?:\\\r?\n[ \t]{0,80})?"
    r"|[ \t]{0,8}(?P<colon>:)(?P<room>\s{0,80})|(?P<comma>\s{0,8},\s{0,80})(?=[rRbBuU]?[\"']))"
)
_OPTION_GAP = re.compile(r"(?:[ \t]{1,8}(?:\\\r?\n[ \t]{0,80})?|[\"'][ \t]{0,8},\s{0,80}(?=[rbu]?[\"']))")
_HEADER = re.compile(
    r"(?i)(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,40}?(?:token|key|auth|secret|signature)[\w-]{0,20})"
    r"[ \t]{0,4}:[ \t]{0,4}(?P<value>[^\r\n'\"`]{1,4000})"
)
_SCHEMED = re.compile(
    r"(?i)\b(?:Basic[ \t]{1,8}(?=[^\s'\"]{0,400}[\d+/=])|Bearer[ \t]{1,8}(?=[^\s'\"]{0,400}(?:[\d+/=_]|[.-]\w)))"
    r"(?P<value>[A-Za-z0-9+/=._~-]{8,4000})"
)
_SAID = re.compile(
    r"(?i)(?<![A-Za-z0-9])(?:password|passphrase|passwd|passcode|pwd|credentials?|(?:secret|token|key)"
    r"(?![ \t]{0,4}[:=])|"
    r"(?:api|access|secret|auth|private|license|wandb)[ _-](?:key|token))(?:[ \t]{1,4}(?:is|was|of|for|to"
    r"|are|value|used|given)"
    r"){0,2}[ \t]{0,4}[:=]?[ \t]{1,4}(?P<value>[rbu]?(?:'[^'\n]{1,200}'|\"[^\"\n]{1,200}\""
    r"|`[^`\n]{1,200}`)|[^\s'\"`,;()\[\]{}]{4,200})"
)
_BACKWARDS = re.compile(
    r"(?i)(?<![^\s'\"`,;()\[\]{}])(?P<value>[^\s'\"`,;()\[\]{}]{6,200})[ \t]{1,4}(?:is|as)[ \t]{1,4}(?:the"
    r"|a|my|our|its)?[ \t]{0,4}"
    r"(?:password|passphrase|passwd|secret|api[ _-]?key|token)\b"
)
_NETRC = re.compile(
    r"(?i)(?<!\S)(?:machine\s{1,8}\S{1,255}|default)\s{1,80}(?:(?:login|account)\s{1,80}\S{1,128}\s{1,80}){0,2}password\s{1,80}(?P<value>\S{1,200})"
)
_NETRC_ALONE = re.compile(r"(?i)(?<!\S)login\s{1,80}\S{1,128}\s{1,80}password\s{1,80}(?P<value>\S{1,200})")
_KEYED_HEX = re.compile(
    r"(?i)(?:wandb|api|login|key|token)[^\n0-9a-f]{0,3}[^\n]{0,24}?\b(?P<value>[0-9a-f]{40})\b(?![\w.])"
)
"""Weights & Biases keys have no prefix: 40 hex digits, as a git commit has. Only a word before tells them."""


def find_fields(text: str) -> Iterator[Span]:
    """Yield the values that stand after names of secrets."""
    if _HINT.search(text) is None and not any(word in text.lower() for word in ("login", "user", "basic")):
        return
    yield from _find_named(text)
    yield from _find_values(_HEADER, text)
    yield from _find_values(_SCHEMED, text)
    yield from _find_values(_NETRC, text)
    yield from _find_values(_KEYED_HEX, text)
    for pattern in (_SAID, _BACKWARDS, _NETRC_ALONE):
        for match in pattern.finditer(text):
            value = match["value"]
            quoted = value[-1] in "'\"`"
            bare = value.strip("'\"`").rstrip(".:!?")
            if (quoted and match.re is _SAID and _is_word(bare)) or looks_chosen(bare):
                yield Span(*match.span("value"))


def _find_values(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    for match in pattern.finditer(text):
        if not is_plain(match["value"]):
            yield Span(*match.span("value"))


def _is_word(value: str) -> bool:
    return not is_plain(value) and (
        any(map(looks_chosen, value.split())) or (len(value) > 3 and value.isdigit())
    )


def _find_named(text: str) -> Iterator[Span]:
    """Yield the value after each name, whatever sign stands between."""
    done = 0
    for hint in _HINT.finditer(text):
        if hint.start() < done:
            continue
        start = _find_start(text, hint.start(), done)
        name = _NAME.match(text, start)
        if name is None or name.end() < hint.end():
            done = hint.end()
            continue
        done = name.end()
        rate = rate_name(name[0])
        if rate == NONE:
            continue
        for first, last in _read_after(text, name[0], start, name.end(), rate):
            yield Span(first, last)
            done = max(done, last)


def _find_start(text: str, position: int, floor: int) -> int:
    """Return where the name around a position begins, at most a hundred characters before."""
    start = position
    floor = max(floor, position - 100)
    while start > floor and (text[start - 1].isalnum() or text[start - 1] in "_.@$-"):
        start -= 1
    return start


def _read_after(text: str, name: str, start: int, end: int, rate: int) -> Iterator[tuple[int, int]]:
    gap = _GAP.match(text, end)
    if gap is not None:
        quoted_name = bool(gap["closed"])
        if gap["comma"] and not (rate == STRONG and quoted_name):
            return
        tight = gap["colon"] and not gap["room"] and not quoted_name
        if tight and not ((rate == STRONG and "passw" in name.lower()) or "secret" in name.lower()):
            return
        if gap["room"] and "\n" in gap["room"]:
            if rate == STRONG:
                yield from _read_below(text, gap.start("room"), gap.end(), quoted_name)
            return
        begin = skip_annotation(text, gap.end()) if gap["colon"] else gap.end()
        yield from _read_value(text, name, begin, rate, query=_in_query(text, start))
    elif name.startswith("-"):
        gap = _OPTION_GAP.match(text, end)
        if gap is not None and rate == STRONG and not text.startswith(("-", "|", ">", "&"), gap.end()):
            yield from _read_value(text, name, gap.end(), rate, query=False)


def _in_query(text: str, start: int) -> bool:
    return start > 0 and text[start - 1] in "?&;"


def _read_below(text: str, room: int, end: int, quoted_name: bool) -> Iterator[tuple[int, int]]:
    """Yield a value that stands on the line after its name, where that is a literal or a lone word further in."""
    literal = read_literal(text, end)
    if literal is not None:
        yield literal
    elif not quoted_name and (below := read_block(text, room)) is not None:
        value = text[below[0] : below[1]]
        if looks_chosen(value) or text[room:end].count(" ") > 1:
            yield below


def _read_value(text: str, name: str, position: int, rate: int, *, query: bool) -> Iterator[tuple[int, int]]:
    block = read_block(text, position) if text.startswith(("|", ">"), position) else None
    if block is not None:
        yield block
        return
    literal = read_literal(text, position)
    if literal is not None:
        value = text[literal[0] : literal[1]]
        if _is_secret(value, name, rate, query=query, quoted=True):
            yield literal
        return
    inside = read_bracket(text, position)
    if inside and rate == STRONG:
        yield from inside
        return
    bare = read_bare(text, position)
    if bare is not None and _is_secret(text[bare[0] : bare[1]], name, rate, query=query, quoted=False):
        yield bare


def _is_secret(value: str, name: str, rate: int, *, query: bool, quoted: bool) -> bool:
    """Whether a value after a name is hidden."""
    if is_plain(value) or (not quoted and is_expression(value, name)):
        return False
    lowered = name.lower().lstrip("-")
    if query and rate:
        return not is_number(value)
    if rate == STRONG:
        if is_number(value):
            return any(stem in lowered for stem in ("passw", "pwd", "secret", "passcode", "otp"))
        return not (lowered in ("pwd", "oldpwd") and is_path(value))
    return not is_path(value) and looks_random(value)


def looks_chosen(value: str) -> bool:
    """Whether a word of prose is a password rather than a word: letters and digits, or signs among them."""
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    return (
        len(value) >= 5
        and letters
        and digits
        and not is_path(value)
        and not is_number(value)
        and not any(mark in value for mark in "/:=<>|\\*")
    )


def looks_random(value: str) -> bool:
    """Whether a value after a name that may also mean something else looks like a credential."""
    bare = value.strip()
    if len(bare) < 20 or any(mark in bare for mark in " :<>[]|\\(),") or bare.count(".") > 2:
        return False
    mixed = any(map(str.isdigit, bare)) and any(map(str.islower, bare)) and any(map(str.isupper, bare))
    return mixed and count_changes(bare) >= 0.3 * len(bare)
