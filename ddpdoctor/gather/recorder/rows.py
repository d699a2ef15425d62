"""The entries of one dump, made plain: what was called, with which sequence number, how far it came."""

from __future__ import annotations

import functools
import itertools
import json
import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.collectives import RETIRED, UNKNOWN, CallTable, RankCalls, RecordedCall, Shapes
from ddpdoctor.evidence.collectives import STATES as STATE_NAMES
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.facts.collectives import OPERATION_OF_BACKENDS

MOST_ROWS = 1_000_000
"""Entries of one dump; torch's default is 2,000."""
FRAMES = 100
"""Frames of a stack that are kept, innermost first."""
NAME_LIMIT = 400
"""Characters of a name of a file, a function, a group or an operation."""
LARGEST_RANK = 1_000_000
MOST_RANKS = 65_536
"""Members of a group that are believed."""
DIMENSIONS, TENSORS = 16, 64
"""Most dimensions of a shape, and most shapes of one call, that are kept: an all_to_all over 1,024 ranks has as
many."""

_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""c10::toString(ScalarType) -> torch's names."""
_PEER = re.compile(r"^(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")
_LARGEST = 2**63 - 1


class Rows:
    """Collects the entries of one dump; texts and stacks go to a table that several dumps share."""

    def __init__(self, table: CallTable) -> None:
        self.table = table
        self.members: dict[str, tuple[str, tuple[int, ...], RankSet | None]] = {}
        """Group -> its description and members in the order of their ranks in it, as far as the dump says."""
        self.calls = array("q")
        self.sequences = array("q")
        self.states = array("q")
        self.begun = array("q")
        self.odd = 0
        """Entries that could not be understood."""
        self.first_record: int | None = None
        self.stacked = False
        """Whether an entry has a call site."""
        self._point_to_point: set[int] = set()
        self._stacks: dict[tuple[int, ...], int] = {}
        self._kept: list[list[Any]] = []
        """Lists whose addresses are keys, so that no other gets the same."""

    def set_groups(self, config: Any) -> None:
        """Take what the dump says of groups (``pg_config``); gloo says mostly nothing."""
        for name, each in config.items() if isinstance(config, dict) else ():
            if isinstance(each, dict) and name and isinstance(name, str):
                ranks, members = _read_list(str(each.get("ranks"))[: 8 * MOST_RANKS])
                self.members[name[:NAME_LIMIT]] = (_plain_name(each.get("desc")), ranks, members)

    def take(self, entry: Mapping[str, Any]) -> int:
        """Take one entry; return the number of its call, -1 where it could not be understood."""
        if len(self.calls) >= MOST_ROWS:
            return -1
        try:
            call = self._describe(entry)
            sequence = _integer(entry.get("p2p_seq_id" if call.p2p else "collective_seq_id"))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            self.odd += 1
            return -1
        if self.first_record is None:
            self.first_record = _integer(entry.get("record_id"))
        number = self.table.call(call)
        if call.p2p:
            self._point_to_point.add(number)
        self.calls.append(number)
        self.sequences.append(sequence)
        self.states.append(_state(entry.get("state"), entry.get("retired")))
        self.begun.append(_integer(entry.get("time_created_ns")))
        return number

    def add_raw(
        self, numbers: Sequence[int], columns: Mapping[str, Sequence[bytes]], memo: Mapping[int, Any]
    ) -> None:
        """Take entries whose calls are known, their varying values as instructions of a pickle.

        Args:
            numbers: of the calls.
            columns: key -> value for each of them.
            memo: what the references of the pickle mean.
        """
        room = MOST_ROWS - len(self.calls)
        sequences = columns["collective_seq_id"]
        if not self._point_to_point.isdisjoint(numbers):
            own = columns["p2p_seq_id"]
            sequences = [
                own[n] if number in self._point_to_point else sequences[n] for n, number in enumerate(numbers)
            ]
        states = {
            pair: _state(_refer(pair[0], memo), pair[1] == b"\x88")
            for pair in set(zip(columns["state"], columns["retired"], strict=True))
        }
        pairs = zip(columns["state"], columns["retired"], strict=True)
        self.calls.extend(numbers[:room])
        _read_numbers(sequences[:room], self.sequences)
        _read_numbers(columns["time_created_ns"][:room], self.begun)
        self.states.extend([states[pair] for pair in pairs][:room])

    def _describe(self, entry: Mapping[str, Any]) -> RecordedCall:
        group = entry["process_group"]
        name, description = _text(group[0]), _text(group[1])
        backend, _, operation = _text(entry["profiling_name"]).partition(":")
        operation = operation or backend
        peer = None
        found = _PEER.match(operation)
        if found is not None:
            operation, peer = found[1], self._global_rank(name, int(found[3]))
        p2p = bool(entry.get("is_p2p")) or operation in ("send", "recv")
        known = self.members.get(name)
        return RecordedCall(
            op=OPERATION_OF_BACKENDS.get(operation, operation),
            group=self.table.group(name, _plain_name(description), known[2] if known else None),
            inputs=_shapes(entry.get("input_sizes")),
            outputs=_shapes(entry.get("output_sizes")),
            input_types=_types(entry.get("input_dtypes")),
            output_types=_types(entry.get("output_dtypes")),
            stack=self._stack(entry.get("frames")),
            peer=peer,
            p2p=p2p,
            timeout_ms=_integer(entry.get("timeout_ms")) or None,
        )

    def _global_rank(self, group: str, rank: int) -> int:
        known = self.members.get(group)
        return known[1][rank] if known and rank < len(known[1]) else rank

    def _stack(self, frames: Any) -> int:
        if not isinstance(frames, list) or not frames:
            return -1
        key = tuple(map(id, frames[:FRAMES]))
        known = self._stacks.get(key)
        if known is None:
            known = self._stacks[key] = self.table.stack(
                Frame(_text(each["filename"]), _integer(each["line"]), _text(each["name"]))
                for each in frames[:FRAMES]
            )
            self._kept.append(frames)
            self.stacked = True
        return known

    def finish(
        self, rank: int, file: str | None = None, *, groups: Sequence[int] = (), attempt: int = 0
    ) -> RankCalls:
        """Return the rows as those of a rank."""
        return RankCalls(
            rank=rank,
            attempt=attempt,
            file=file,
            calls=Numbers(self.calls),
            sequences=Numbers(self.sequences),
            states=Numbers(self.states),
            begun_ns=Numbers(self.begun) if any(self.begun) else Numbers(),
            overwritten=max(0, self.first_record or 0),
            groups=tuple(groups),
        )


@functools.lru_cache(maxsize=1024)
def _read_list(text: str) -> tuple[tuple[int, ...], RankSet | None]:
    """Return the ranks of a text like ``[0, 1]``, in order and as a set: all dumps of a job have the same."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return (), None
    if not isinstance(listed, list):
        return (), None
    ranks = tuple(rank for rank in listed[:MOST_RANKS] if type(rank) is int and 0 <= rank <= LARGEST_RANK)
    return ranks, RankSet(ranks) if ranks else None


def _plain_name(description: Any) -> str:
    return description[:NAME_LIMIT] if isinstance(description, str) and description != "undefined" else ""


_FORMS = {2: "<xB", 3: "<xH", 5: "<xi", 10: "<2xq"}
"""Bytes of an instruction that writes a number (BININT1, BININT2, BININT, LONG1) -> how it is read."""


def _read_numbers(raw: Sequence[bytes], column: array[int]) -> None:
    """Append the numbers that instructions write; 0 for None."""
    for size, same in itertools.groupby(raw, len):
        form = _FORMS.get(size)
        if form is None:
            column.extend(0 for _ in same)
        else:
            column.extend(itertools.chain.from_iterable(struct.iter_unpack(form, b"".join(same))))


def _refer(raw: bytes, memo: Mapping[int, Any]) -> Any:
    return memo.get(int.from_bytes(raw[1:], "little"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:NAME_LIMIT]


def _integer(value: Any) -> int:
    """Return a number that fits a column; texts of digits are numbers too, as JSON has some."""
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdigit():
        value = int(value)
    if not isinstance(value, int) or not -_LARGEST <= value <= _LARGEST:
        return 0
    return int(value)


def _state(name: Any, retired: Any) -> int:
    known = STATE_NAMES.index(name) if name in STATE_NAMES else UNKNOWN
    return known + (RETIRED if retired is True else 0)


def _shapes(sizes: Any) -> Shapes | None:
    if not isinstance(sizes, list):
        return None
    return tuple(
        tuple(_integer(size) for size in shape[:DIMENSIONS])
        for shape in sizes[:TENSORS]
        if isinstance(shape, list)
    )


def _types(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list):
        return ()
    return tuple(_TYPES.get(name, name[:40]) for name in names[:TENSORS] if isinstance(name, str))
