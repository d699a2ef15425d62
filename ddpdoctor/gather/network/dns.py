"""Asking for names with a limit that holds even when DNS does not answer."""

from __future__ import annotations

import socket

from ddpdoctor.evidence.network import Resolution
from ddpdoctor.gather.deadline import call_within

RESOLVE_LIMIT_S = 5.0
"""glibc asks each name server twice for 5 s (resolv.conf(5): timeout 5, attempts 2). One whole try is what a
start of training can spare; a slower answer is a finding in itself."""


def look_up(name: str, limit_s: float = RESOLVE_LIMIT_S) -> tuple[str, ...]:
    """Return the addresses of ``name`` in the resolver's order, each once, without scope ids.

    Raises:
        OSError: the name has no address.
        TimeoutError: no answer within ``limit_s`` seconds (a subclass of OSError).
    """
    answers = call_within(
        limit_s, lambda: socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    )
    return tuple(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))


def describe_lookup_error(problem: Exception, limit_s: float) -> str:
    """Return one line for an error of `look_up`, in the resolver's own words where it gave any."""
    if isinstance(problem, socket.gaierror):
        return f"{problem.strerror or problem} (gai error {problem.errno})"
    if isinstance(problem, TimeoutError):
        return f"no answer within {limit_s:g} s"
    return str(problem) or type(problem).__name__


def resolve(
    node: int, name: str, purpose: str, of_node: int | None = None, limit_s: float = RESOLVE_LIMIT_S
) -> Resolution:
    """Ask for ``name`` on this node; never raises and never takes longer than ``limit_s`` seconds.

    Args:
        node: this node.
        name: host name or literal address.
        purpose: master, peer or self.
        of_node: the node whose name it is, for peer and self.
        limit_s: seconds.
    """
    try:
        return Resolution(node, name, purpose, of_node, addresses=look_up(name, limit_s))
    except (OSError, UnicodeError, ValueError) as problem:  # UnicodeError: a label over 63 characters
        return Resolution(node, name, purpose, of_node, error=describe_lookup_error(problem, limit_s))
