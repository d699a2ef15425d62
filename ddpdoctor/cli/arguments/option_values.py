"""Reading the values of `check`'s options. What they may be is in ``ddpdoctor.launch.request``."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.cli.arguments.options import parse_count, parse_seconds, split_words
from ddpdoctor.cli.arguments.parsing import BadValue
from ddpdoctor.text.suggest import closest

SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""Units of nccl-tests (src/common.cu, parsesize): powers of 1024."""
MAX_SIZE = 1 << 38
"""256 GiB: no host or GPU holds such a buffer."""
MAX_NODES = 65536
"""More nodes than any installation has; what is above is a typing error."""


def parse_nproc(text: str) -> int | str:
    """Read --nproc: a number of ranks, or auto, gpu, cpu.

    Raises:
        BadValue: none of them, or out of range.
    """
    from ddpdoctor.launch.request import MAX_NPROC, NPROC_WORDS

    if text in NPROC_WORDS:
        return text
    try:
        number = int(text)
    except ValueError:
        near = closest(text, NPROC_WORDS)
        raise BadValue(
            f"{text!r} is neither a number nor {', '.join(NPROC_WORDS)}", hint=f"--nproc {near or 4}"
        ) from None
    if not 1 <= number <= MAX_NPROC:
        raise BadValue(
            f"{number} ranks cannot be launched here; the range is 1 to {MAX_NPROC}", hint="--nproc 4"
        )
    return number


def parse_nnodes(text: str) -> int:
    """Read --nnodes; torchrun's ``N:N`` is a number too.

    Raises:
        BadValue: not a number of nodes, or an elastic range.
    """
    low, _, high = text.partition(":")
    if high and high != low:
        raise BadValue(
            f"{text!r} is an elastic range; check needs a fixed number of nodes", hint=f"--nnodes {high}"
        )
    try:
        number = int(low)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_NODES:
        raise BadValue(f"{text!r} is not a number of nodes", hint="--nnodes 2")
    return number


def parse_node_rank(text: str) -> int:
    """Read --node-rank.

    Raises:
        BadValue: it is not a whole number from 0.
    """
    if not text.isascii() or not text.isdigit():
        raise BadValue(f"{text!r} is not a node rank; they count from 0", hint="--node-rank 0")
    return int(text)


def parse_port(text: str) -> int:
    """Read a port.

    Raises:
        BadValue: it is not one of 1 to 65535.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 65535:
        raise BadValue(f"{text!r} is not a port; ports are 1 to 65535", hint="29500, torchrun's default")
    return number


def parse_backend(text: str) -> str:
    """Read --backend; rccl is what ROCm builds call nccl.

    Raises:
        BadValue: torch has no backend of that name.
    """
    from ddpdoctor.launch.request import BACKENDS

    name = {"rccl": "nccl"}.get(text.lower(), text.lower())
    return _one(name, text, "backend", BACKENDS, "--backend")


def parse_rdzv_backend(text: str) -> str:
    """Read --rdzv-backend.

    Raises:
        BadValue: not a rendezvous backend that needs no service of its own.
    """
    from ddpdoctor.launch.request import RDZV_BACKENDS

    return _one(text, text, "rendezvous backend (for check)", RDZV_BACKENDS, "--rdzv-backend")


def parse_strategies(text: str) -> list[str]:
    """Read a list of strategies.

    Raises:
        BadValue: one is unknown.
    """
    from ddpdoctor.evidence.stages import STRATEGIES

    return [_one(word, word, "strategy", STRATEGIES, "") for word in split_words(text)]


def parse_stages(text: str) -> list[str]:
    """Read a list of stages.

    Raises:
        BadValue: one of them does not exist.
    """
    from ddpdoctor.evidence.stages import STAGES

    return [_one(word, word, "stage", STAGES, "") for word in split_words(text)]


def parse_stage_limit(text: str) -> tuple[str, float]:
    """Read ``STAGE=SECONDS``.

    Raises:
        BadValue: of another form, or no such stage.
    """
    stage, equals, seconds = text.partition("=")
    if not equals:
        raise BadValue(f"{text!r} is not of the form STAGE=SECONDS", hint="--stage-timeout ddp=60")
    return parse_stages(stage)[0], parse_seconds(seconds)


def parse_operations(text: str) -> list[str]:
    """Read a list of operations for the sweep; hyphens are taken for underscores.

    Raises:
        BadValue: one of them cannot be measured.
    """
    from ddpdoctor.launch.request import SWEEP_OPERATIONS

    words = split_words(text.replace("-", "_"))
    return [_one(word, word, "operation", SWEEP_OPERATIONS, "--collectives") for word in words]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes in bytes: ``1K,4M`` or a range ``8-64M``, which doubles as nccl-tests does by default.

    Returns:
        Sizes in bytes, ascending, each once.

    Raises:
        BadValue: something in it is not a size or a range.
    """
    sizes: set[int] = set()
    for word in split_words(text):
        low, dash, high = word.partition("-")
        first = _parse_size(low)
        last = _parse_size(high) if dash else first
        if last < first:
            raise BadValue(f"{word!r} is an empty range", hint=f"--sizes {high}-{low}")
        while first <= last:
            sizes.add(first)
            first *= 2
        sizes.add(last)
    return tuple(sorted(sizes))


def _parse_size(text: str) -> int:
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = word[-1:] if word[-1:] in ("K", "M", "G") else ""
    digits = word.removesuffix(unit)
    number = int(digits) * SIZE_UNITS[unit] if digits.isascii() and digits.isdigit() else 0
    if not 1 <= number <= MAX_SIZE:
        raise BadValue(f"{text!r} is not a size in bytes", hint="--sizes 1K,4M or --sizes 8-64M")
    return number


def _one(word: str, typed: str, kind: str, known: Sequence[str], option: str) -> str:
    if word in known:
        return word
    near = closest(word, known)
    hint = f"{option} {near}".strip() if near else None
    raise BadValue(f"there is no {kind} {typed!r}; choose from {', '.join(known)}", hint=hint)


__all__ = [
    "parse_backend",
    "parse_count",
    "parse_nnodes",
    "parse_node_rank",
    "parse_nproc",
    "parse_operations",
    "parse_port",
    "parse_rdzv_backend",
    "parse_sizes",
    "parse_stage_limit",
    "parse_stages",
    "parse_strategies",
]
