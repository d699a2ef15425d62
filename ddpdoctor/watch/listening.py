"""Answering questions over a private Unix socket, in a thread beside the job."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

QUESTION_BYTES = 4096
PATIENCE_S = 5.0
"""How long who asks may take to say what."""


class Listener:
    """Takes one question a connection, and gives one answer.

    Args:
        address: of the socket, which is only for this user.
        answer: from a question to its answer; called in the thread, must not raise.
        name: of the thread.
        failed: hears of a question or an answer that did not get through.
    """

    def __init__(
        self,
        address: Path,
        answer: Callable[[bytes], bytes],
        name: str,
        failed: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._address, self._answer, self._name, self._failed = address, answer, name, failed
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: there can be no socket.
            RuntimeError: there can be no thread.
        """
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self._address))
            os.chmod(self._address, 0o600)
            listener.listen(4)
            threading.Thread(target=self._serve, args=(listener,), name=self._name, daemon=True).start()
        except BaseException:
            listener.close()
            raise
        self._socket = listener

    def close(self) -> None:
        """Stop to listen."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends the accept of the thread
            self._socket.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.settimeout(PATIENCE_S)
                    peer.sendall(self._answer(peer.recv(QUESTION_BYTES)))
                except Exception as problem:  # of this question; the next one is answered
                    self._failed(problem)
