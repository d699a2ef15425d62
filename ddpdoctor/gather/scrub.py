"""Taking secrets, user names and home directories out of texts before they are kept.

Better one word too many hidden than one secret shown, but a diagnosis lives on its paths, ports, hashes and
numbers: those stay. What is a secret is known by `ddpdoctor.gather.secrets`.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Sequence

from ddpdoctor.gather.secrets import find_spans
from ddpdoctor.gather.secrets.command_lines import is_password
from ddpdoctor.gather.secrets.fields import looks_chosen
from ddpdoctor.gather.secrets.spans import HIDDEN, cover
from ddpdoctor.gather.secrets.values import is_plain
from ddpdoctor.text.secret_names import is_secret_name, rate_name

__all__ = ["HIDDEN", "hide_secrets", "is_secret_name", "scrub", "scrub_argv", "scrub_paths", "scrub_source"]

CACHED_LENGTH = 2000
"""Characters of a text whose scrubbed form is remembered."""

_COMMENT_WORDS = re.compile(r"[^\s,;:()\[\]{}'\"`=]{2,80}")
_END = r"(?=[/\s:;,'\"\])}>]|$)"
_HOMES = re.compile(
    rf"(?<![\w/.~-])(?:(?:/[\w.-]+){{0,3}}?/(?:home|Users)/(?!linuxbrew/)[^/\s:;,'\"\])}}>]+|/root|/var/root){_END}"
)
_TILDE = re.compile(rf"(?<![\w/.~-])~[a-z_][\w.-]*{_END}")
_SHARED_NAMES = frozenset(
    "root user admin ubuntu nobody daemon runner work app data home test debian ec2-user".split()
)
"""Accounts that many machines have: hiding them would tear holes into ordinary paths."""


def scrub(text: str) -> str:
    """Return ``text`` without secrets, user names, e-mail addresses and home directories.

    Tokens, keys, passwords and URL credentials become ``***``, home directories ``~``, the user's name in a
    path or before an ``@`` ``<user>``. Git hashes, ports, numbers and other paths stay.
    """
    if not text:
        return text
    return scrub_paths(hide_secrets(text))


@functools.lru_cache(maxsize=16384)
def _hide(text: str) -> str:
    """Ranks say the same thing thousands of times."""
    return cover(text, find_spans(text))


def hide_secrets(text: str) -> str:
    """Return ``text`` without secrets; user names and home directories stay, as for a message to the user."""
    return _hide(text) if len(text) <= CACHED_LENGTH else cover(text, find_spans(text))


def scrub_source(line: str) -> str:
    """Return a line of source scrubbed, without what its comment might give away.

    Comments hold what people note for themselves, and no diagnosis needs them: one that speaks of logins, or holds a
    word of letters and digits, is hidden whole. What ddpdoctor itself reads in comments is only scrubbed.
    """
    place = _find_comment(line)
    if place is not None and "ddpdoctor:" not in line[place:] and _is_telling(line[place + 1 :]):
        return f"{scrub(line[:place])}# {HIDDEN}"
    return scrub(line)


def _find_comment(line: str) -> int | None:
    """Return where the comment of a line of Python begins; None where there is none."""
    quote = ""
    place = 0
    while place < len(line):
        letter = line[place]
        if letter == "\\":
            place += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#":
            return place
        place += 1
    return None


def _is_telling(comment: str) -> bool:
    words = _COMMENT_WORDS.findall(comment)
    return any(looks_chosen(word) or rate_name(word) for word in words)


def scrub_paths(text: str) -> str:
    """Return ``text`` with home directories as ``~`` and the user's name hidden; nothing else is touched."""
    home, name = _owner(os.environ.get("HOME"), os.environ.get("USER") or os.environ.get("LOGNAME"))
    if home is not None:
        text = home.sub("~", text)
    text = _TILDE.sub("~", _HOMES.sub("~", text))
    return name.sub("<user>", text) if name is not None else text


def scrub_argv(arguments: Sequence[str]) -> list[str]:
    """Return a command line, one element per argument, scrubbed.

    What an option such as ``--password`` is given is hidden whole, whatever it contains.
    """
    scrubbed: list[str] = []
    before = ""
    for argument in arguments:
        last = before.rpartition(" ")[2]
        name, equals, value = argument.partition("=")
        if last.startswith("-") and not argument.startswith("-") and _takes_secret(last, argument, before):
            scrubbed.append(HIDDEN)
        elif equals and value and name.startswith("-") and is_secret_name(name) and not is_plain(value):
            scrubbed.append(f"{name}={HIDDEN}")
        elif (
            argument.startswith("-p")
            and len(argument) > 2
            and is_password(argument[2:], before, attached=True)
        ):
            scrubbed.append(f"-p{HIDDEN}")
        else:
            scrubbed.append(scrub(argument))
        before = f"{before} {argument}"[-400:]
    return scrubbed


def _takes_secret(option: str, value: str, before: str) -> bool:
    if option == "-p":
        return is_password(value, before)
    if option in ("-u", "--user", "--proxy-user"):
        return ":" in value
    return is_secret_name(option) and not is_plain(value)


@functools.lru_cache(maxsize=16)
def _owner(home: str | None, name: str | None) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Return the patterns for this process's own home directory and user name."""
    if name is None:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except (KeyError, OSError):
            name = None
    own_home = None
    if home and home.startswith("/") and len(home.rstrip("/")) > 1:
        own_home = re.compile(rf"(?<![\w/.~-]){re.escape(home.rstrip('/'))}{_END}")
    own_name = None
    if name and len(name) >= 3 and name not in _SHARED_NAMES:
        own_name = re.compile(rf"(?<=/){re.escape(name)}{_END}|(?<![\w.-]){re.escape(name)}(?=@)")
    return own_home, own_name
