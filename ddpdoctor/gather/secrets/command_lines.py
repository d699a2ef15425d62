"""Secrets in command lines: ``-p`` and ``-u``, and the programs whose options mean a password."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.gather.secrets.spans import Span
from ddpdoctor.gather.secrets.values import is_path, read_bare, read_literal

_LOGIN_PAIR = re.compile(
    r"(?<![^\s'\"])(?:-u|--user|--proxy-user|-U)[ =]{0,2}[^\s:'\"-][^\s:'\"]{0,128}[:%](?P<value>[^\s'\"]{1,256})"
)
_PASSWORD = re.compile(r"(?<![^\s'\",\[])-p(?:(?P<gap>[ \t]{1,8}|=|['\"],\s{1,8}(?=['\"]))|(?=[^\s=-]))")
_TAKES_PASSWORD = re.compile(
    r"(?<![\w-])(?:sshpass|mysql\w{0,8}|mariadb\w{0,8}|mongo\w{0,10}|(?:docker|podman|oc|az|helm|skopeo|buildah|crane|"
    r"nerdctl)\s{1,8}(?:\w{1,20}\s{1,8})?login|7z\w?|pg_\w{1,12}|htpasswd|smbclient|lftp|ncftp|clickhouse-client|keytool)(?![\w-])"
)
"""Programs whose ``-p`` is a password."""
_OTHER_MEANING = re.compile(
    r"(?<![\w-])(?:srun|sbatch|salloc|sinfo|squeue|scontrol|mkdir|ssh|scp|sftp|cp|rsync|tar|docker run"
    r"|podman run|nc|ncat|"
    r"py-spy|gdb|perf|strace|kill|ps|lsof|pytest|pip|screen|read|make|patch|tcpdump|nmap|redis-cli|psql|mpirun|mpiexec)(?![\w-])"
)
"""Programs whose ``-p`` is a partition, a port, a process, a path or a flag."""
_PASSES = re.compile(r"(?<!\S)-pass(?:in|out)?[ \t]{1,8}(?:pass:)?(?P<value>[^\s'\"]{1,256})")
_PORT = re.compile(r"\d{1,5}(?::\d{1,5}){0,2}(?:/(?:tcp|udp))?|[\w.]{1,40}:\d{1,5}(?::\d{1,5})?")
_FLAG = re.compile(r"[a-z]{1,20}(?:[-_=][\w-]{0,40})?")
"""What follows ``-p`` in ``-pthread``, ``-pix_fmt``, ``-profile``."""


def find_in_commands(text: str) -> Iterator[Span]:
    """Yield passwords that options announce by one letter."""
    if "-u" in text or "-U" in text or "--user" in text or "--proxy-user" in text:
        for match in _LOGIN_PAIR.finditer(text):
            if not (match["value"].isdigit() and len(match["value"]) < 6):
                yield Span(*match.span("value"))
    if "-pass" in text:
        for match in _PASSES.finditer(text):
            yield Span(*match.span("value"))
    if "-p" in text:
        yield from _find_passwords(text)


def _find_passwords(text: str) -> Iterator[Span]:
    """Yield what follows ``-p``, unless it is what the command before means by it."""
    for match in _PASSWORD.finditer(text):
        literal = read_literal(text, match.end())
        found = literal or read_bare(text, match.end())
        if found is None:
            continue
        line = text.rfind("\n", 0, match.start()) + 1
        before = text[max(line, match.start() - 400) : match.start()]
        if is_password(text[found[0] : found[1]], before, attached=match["gap"] is None):
            yield Span(*found)


def is_password(value: str, before: str, *, attached: bool = False) -> bool:
    """Whether the value of ``-p`` is a password.

    Args:
        value: it.
        before: the command line before it.
        attached: it follows the letter at once.
    """
    if _TAKES_PASSWORD.search(before):
        return True
    if _PORT.fullmatch(value) or is_path(value) or "/" in value or value.startswith(("-", ".", "$", "***")):
        return False
    if attached:
        return _FLAG.fullmatch(value) is None and any(c.isupper() or c.isdigit() for c in value)
    if _OTHER_MEANING.search(before):
        return False
    if ".py" in before or " -m " in before:
        return True
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))
