"""A tiny TCP server and client, run on simulated hosts to see what their network lets through.

``peer.py serve PORT [ADDRESS]`` answers each connection with the number of bytes it sent. ``peer.py send HOST
PORT BYTES LIMIT [SOURCE]`` sends that many, waits for the answer and prints ``ok SECONDS``, or the name of
the error (``TimeoutError`` when LIMIT seconds have passed without progress).
"""

from __future__ import annotations

import socket
import sys
import threading
import time

_CHUNK = 65536


def serve(port: int, address: str) -> None:
    """Serve for ever."""
    with socket.create_server((address, port)) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_count, args=(connection,), daemon=True).start()


def _count(connection: socket.socket) -> None:
    total = 0
    with connection:
        while chunk := connection.recv(_CHUNK):
            total += len(chunk)
        connection.sendall(str(total).encode())


def send(host: str, port: int, size: int, limit_s: float, source: str) -> str:
    """Send ``size`` bytes and say how it went."""
    try:
        with socket.create_connection(
            (host, port), timeout=limit_s, source_address=(source, 0)
        ) as connection:
            started = time.monotonic()
            connection.sendall(bytes(size))
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(64)
            return f"ok {time.monotonic() - started:.4f}" if int(answer) == size else f"got {answer!r}"
    except OSError as error:
        return type(error).__name__


if __name__ == "__main__":
    words = sys.argv[2:]
    if sys.argv[1] == "serve":
        serve(int(words[0]), words[1] if len(words) > 1 else "0.0.0.0")
    else:
        print(
            send(words[0], int(words[1]), int(words[2]), float(words[3]), words[4] if len(words) > 4 else "")
        )
