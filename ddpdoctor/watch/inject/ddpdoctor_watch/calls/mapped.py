"""The mapped file of calls: made, and written one record at a time; `ring` says what is written."""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from ..core import journal, process
from . import groups, sites

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpdoctor.facts import events, wire
else:
    from .. import wire

CAPACITY = 4096
"""Records; the oldest is overwritten. 260 kB a rank."""
INTERNED = 4000
"""Signatures that get a number; later ones are number 0: a program that makes shapes anew at each step must not fill
the memory of the job."""
REDUCTIONS = 64
"""Reductions whose names are remembered; those with a factor (PREMUL_SUM) are made anew for each call."""

_WORD = 0xFFFFFFFFFFFFFFFF


class Ring:
    """The mapped file of this process and what its numbers mean."""

    def __init__(self, view: Any, pack: Any, pack_number: Any, unpack: Any) -> None:
        self.view = view
        self.unpack = unpack
        self.pack = pack
        self.pack_number = pack_number
        self.count = 0
        self.public = 0
        self.elements = self.summed = 0
        """Elements that collectives were given: all of them, and those that reduce."""
        self.largest = self.summing = 0
        """Elements of the largest call that reduced since that was asked last, and its site."""
        self.carried: dict[int, int] = {}
        """Number of a group -> elements since a backward began, but for those that backwards themselves carry."""
        self.carrying = 0
        """Site of the last call that was counted there."""
        self.scattered: dict[int, tuple[int, int]] = {}
        """Where the memory of a part of a sum begins that this rank alone was given since a backward began -> where it
        ends, and the number of the group."""
        self.routed: dict[int, list[int]] = {}
        """Site of exchanges whose sizes differ by rank -> how many, and the rows sent and received in all."""
        self.exchanged = 0
        self.signatures: dict[object, int] = {}
        self.sites = sites.Sites()
        self.groups = groups.Groups()
        self.ordinals: dict[object, int] = {}
        self.reductions: dict[int, tuple[object, str]] = {}
        self.reduction: tuple[object, str] = (None, "")
        """The one that was named last."""
        core: Any = sys.modules["torch._C"]
        torch: Any = sys.modules["torch"]
        self.tensor = torch.Tensor
        self.is_recording = torch.is_grad_enabled
        self.count_modes = getattr(core, "_len_torch_function_stack", _give_one)
        self.unseen = core.DisableTorchFunction
        """Turns off what modes and subclasses see of attributes; nothing is computed there."""


def _give_one() -> int:
    """Stand in for what this torch cannot count."""
    return 1


def name_reduction(ring: Ring, reduction: Any) -> str:
    """Return the name of a reduction; torch itself takes longer for that than we do for all the rest."""
    known = ring.reduction
    if known[0] is reduction:
        return known[1]
    found = ring.reductions.get(id(reduction))
    if found is None or found[0] is not reduction:
        if len(ring.reductions) >= REDUCTIONS:
            ring.reductions.clear()
        found = ring.reductions[id(reduction)] = (reduction, str(reduction))
    ring.reduction = found
    return found[1]


def append(
    ring: Ring, ordinal: int, signature: int, site: int, group: int, peer: int, tag: int, flags: int
) -> int:
    """Write one record; return its place."""
    number = ring.count = ring.count + 1
    place = wire.HEADER + (number - 1) % CAPACITY * wire.RECORD
    ring.pack(
        ring.view, place, number, time.monotonic_ns(), 0, ordinal, signature, site, group,
        peer, tag, flags, get_ident() & _WORD,
    )  # fmt: skip
    ring.pack_number(ring.view, wire.COUNT_AT, number)
    return place


def open_ring() -> Ring:
    """Make the file, its space reserved: writing to a mapped page that the disk has no room for is a bus error."""
    import mmap
    import struct

    ticks, _ = journal.read_ticks("self")
    path = os.path.join(journal.folder(), f"{os.getpid()}-{ticks}.ring")
    size = wire.HEADER + CAPACITY * wire.RECORD
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        view = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    thread = process.main_thread & _WORD
    struct.pack_into(wire.HEAD_FORMAT, view, 0, wire.MAGIC, CAPACITY, wire.RECORD, os.getpid(), ticks, thread)
    return Ring(
        view,
        struct.Struct(wire.RECORD_FORMAT).pack_into,
        struct.Struct("<Q").pack_into,
        struct.Struct(wire.RECORD_FORMAT[:8]).unpack_from,
    )


def intern_signature(ring: Ring, key: object, fields: events.Signature) -> int:
    """Give a signature a number, and write down what that means; 0 where there are too many."""
    if len(ring.signatures) >= INTERNED:
        return 0
    number = ring.signatures[key] = len(ring.signatures) + 1
    journal.write("signature", {"number": number, **fields})
    return number
