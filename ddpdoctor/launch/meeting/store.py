"""torch's TCPStore as the meeting of nodes uses it: opened within a limit, and texts of any size put through it."""

from __future__ import annotations

import base64
import socket
import time
import zlib
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

from ddpdoctor.gather.deadline import call_within

STORE_TIMEOUT_S = 30.0
"""Seconds for one operation on the store once it is connected."""
CONNECT_LIMIT_S = 15.0
"""Seconds for a store to say hello once its port is open. It takes milliseconds; torch itself waits forever where
something else than a store has the port and says nothing (seen with torch 2.13)."""
TELLING_S = 2.0
"""torch's client looks at its time-out between two attempts, which come up to 1 s apart."""
DIAL_LIMIT_S = 5.0
"""Seconds for one TCP connection: Linux sends SYN at 0, 1 and 3 s (tcp_syn_retries), a fourth would come at 7 s."""
POLL_S = 0.1
"""Seconds between two looks at keys that others are to set."""
PIECE = 900
"""Characters sent at once on a way that may lose large packets: with key and headers below 1,280 bytes, the
least MTU of IPv6 (RFC 8200, 5)."""

Store = PrefixStore | TCPStore


def serve_store(host: str, port: int) -> TCPStore:
    """Open a store that listens on ``port``, as torchrun's agent does.

    Raises:
        Exception: whatever torch raised: RuntimeError, DistNetworkError or ValueError.
    """
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timedelta(seconds=STORE_TIMEOUT_S),
    )


def open_store(host: str, port: int, limit_s: float = CONNECT_LIMIT_S) -> TCPStore:
    """Connect to a store that listens already.

    Raises:
        OSError: nobody listens, or what listens does not answer as a store (TimeoutError).
        Exception: whatever torch raised about what answered.
    """
    socket.create_connection((host, port), timeout=min(DIAL_LIMIT_S, limit_s)).close()
    timeout = timedelta(seconds=max(1.0, limit_s))
    # What hangs up is tried again by torch until its own time-out, and is told; what says nothing it waits for.
    store = call_within(
        limit_s + TELLING_S,
        lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout),
    )
    store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
    return store


def send_parcel(store: Store, key: str, text: str, *, gently: bool) -> None:
    """Put a text under ``key``, compressed; the key is there only when all of it is.

    Args:
        store: where to.
        key: its name.
        text: any length.
        gently: send pieces of which none fills a packet, each after the one before has arrived.
    """
    data = base64.b64encode(zlib.compress(text.encode(), 1)).decode()
    step = PIECE if gently else max(1, len(data))
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}/{number}", piece)
        if gently:
            store.check([f"{key}/{number}"])  # the answer shows that it is there
    store.set(key, str(len(pieces)))


def receive_parcel(store: Store, key: str) -> str:
    """Return the text that was put under ``key``, waiting for it as long as the store's own time-out.

    Raises:
        Exception: torch's DistStoreError when it does not come, DistNetworkError when the store is gone.
    """
    count = int(store.get(key))
    data = b"".join(store.get(f"{key}/{number}") for number in range(count))
    return zlib.decompress(base64.b64decode(data)).decode()


def wait_for_key(store: Store, key: str, end: float) -> bool:
    """Wait until the store has a key; return whether it came before ``end``."""
    while not store.check([key]):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
