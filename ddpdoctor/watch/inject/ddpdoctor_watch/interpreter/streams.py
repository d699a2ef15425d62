"""Standard output and error of a rank: asked from the supervisor, which carries them on and keeps a copy.

Only descriptors that still are what the command itself was given are replaced: what a launcher or the user
redirects goes where it was sent. Where a stream is a terminal the replacement is one too.
"""

from __future__ import annotations

import os
import sys

from ..core import journal

_LIMIT_S = 5.0
"""The supervisor answers in well under a millisecond; a rank must not wait for one that is stopped."""


def attach(rank: object, attempt: object, command: bool = False) -> None:
    """Replace descriptors 1 and 2 as far as they are the command's own.

    A launcher keeps its streams, for its ranks inherit them; what a rank starts shares the rank's. The command
    itself, where it is a script that starts its own ranks, gets streams too: those that have their variables when
    they start get their own, others share its.

    Args:
        rank: global rank, for the name of the file.
        attempt: restart of the elastic agent.
        command: this process is the command itself.
    """
    address, _, targets = os.environ.get("DDPDOCTOR_STREAMS", "").partition("|")
    if not address or not targets:
        return
    wanted = [_is_target(number, text) for number, text in enumerate(targets.split(",")[:2], 1)]
    if not any(wanted):
        return
    try:
        given = _ask(address, "command" if command else rank, attempt, wanted)
    except OSError as error:
        journal.trouble("streams", error)
        return
    for number, asked in enumerate(wanted, 1):
        if asked and given:
            descriptor = given.pop(0)
            os.dup2(descriptor, number, inheritable=True)
            os.close(descriptor)
    if command:  # what its ranks inherit is the command's own for them
        os.environ["DDPDOCTOR_STREAMS"] = f"{address}|{_describe(1)},{_describe(2)}"


def is_command() -> bool:
    """Whether this process is what the supervisor started itself."""
    return os.environ.get("DDPDOCTOR_SUPERVISOR") == str(os.getppid())


def _is_target(number: int, text: str) -> bool:
    return _describe(number) == text


def _describe(number: int) -> str:
    try:
        status = os.fstat(number)
    except OSError:
        return "closed"
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


def _ask(address: str, rank: object, attempt: object, wanted: list[bool]) -> list[int]:
    # The C module: `socket` itself takes longer to import than everything else here.
    import _socket

    peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        peer.settimeout(_LIMIT_S)
        peer.connect(address)
        question = {"pid": os.getpid(), "rank": rank, "attempt": attempt, "streams": wanted}
        peer.send(journal.encode(question).encode("ascii"))
        _, extra, _, _ = peer.recvmsg(16, _socket.CMSG_SPACE(2 * 4))
    finally:
        peer.close()
    for level, kind, data in extra:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            return [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]
    return []
