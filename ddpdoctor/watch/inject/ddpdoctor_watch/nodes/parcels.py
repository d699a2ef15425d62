"""What was seen on a node, as its supervisor sums it up: asked for there, and unpacked on the head."""

from __future__ import annotations

import os
import time

from ..core import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUMMARY_S = 2.5
"""How long the supervisor may take to sum up; it takes some 0.1 s."""
PARCEL = 1 << 20
"""Bytes of a parcel, compressed; the store takes 8 MiB (TCPStoreLibUvBackend.cpp, MAX_PAYLOAD_LEN)."""
UNPACKED = 16 << 20
"""Bytes of a parcel that is unpacked."""


def ask_summary(node: int) -> str:
    """Let the supervisor sum up what was seen on this node; empty where it does not."""
    import base64
    import socket

    address = os.environ.get("DDPDOCTOR_STREAMS", "").partition("|")[0]
    if not address:
        return ""
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            end = time.monotonic() + SUMMARY_S
            peer.settimeout(SUMMARY_S)
            peer.connect(os.path.join(os.path.dirname(address), "node"))
            peer.sendall(b'{"node":%d}\n' % node)
            while len(data) <= PARCEL:
                peer.settimeout(max(end - time.monotonic(), 0.001))
                chunk = peer.recv(65536)
                if not chunk:
                    return base64.b64encode(data).decode("ascii")
                data += chunk
    except OSError as error:
        journal.failed("summary", error)
    return ""


def keep(node: int, data: Any) -> bool:
    """Unpack a parcel into the run directory; return whether there was something in it."""
    import base64
    import zlib

    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(bytes(data)[: 2 * PARCEL]), UNPACKED)
    except (ValueError, zlib.error) as error:
        journal.trouble("parcel", error)
        return False
    if not unpacked:
        return False
    folder = os.path.join(os.path.dirname(journal.folder()), "nodes")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, f"{node}.json")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(unpacked)
    except OSError as error:
        journal.trouble("parcel", error)
        return False
    return True
