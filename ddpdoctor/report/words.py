"""Words for the page: units, folded ranks and hosts, and text made safe to look at."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from ddpdoctor.evidence import RankSet

RANGES_SHOWN = 12
"""Ranges of a rank set that are written out; a line of text holds about that many."""

HOSTS_SHOWN = 4
"""Host names that are written out one by one before they are folded to ``node-[0000-2047]``."""

_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
"""Unicode's directional controls (UAX 9, table 2-5): they can make text read other than it is."""


def clean(text: str) -> str:
    r"""Return ``text`` with everything invisible or unprintable made visible.

    C0 controls become the control pictures of Unicode (U+2400), directional controls and lone surrogates
    become escapes such as ``\u202e``, so that a hostile host name can neither hide nor reorder words and the
    page can always be encoded.
    """
    if text.isprintable():
        return text
    if "\n" in text:  # so that of a long text only the lines that need it are gone through
        return "\n".join(map(clean, text.split("\n")))
    return "".join(_show(character) for character in text)


def _show(character: str) -> str:
    number = ord(character)
    if character in "\n\t":
        return character
    if number < 0x20 or number == 0x7F:
        return chr(0x2421) if number == 0x7F else chr(0x2400 + number)
    if 0x80 <= number < 0xA0 or number in _BIDI or number in (0x2028, 0x2029) or 0xD800 <= number < 0xE000:
        return f"\\u{number:04x}"
    return character


def clip(text: str, limit: int) -> str:
    """Return at most ``limit`` characters; what was cut is stated at the end."""
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} … ({len(text) - limit:,} more characters)"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 rank`` or ``16,384 ranks``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_ranks(ranks: RankSet, size: int | None = None, noun: str = "rank") -> str:
    """Return ranks as short words: ``rank 3``, ``ranks 0-2, 4``, ``all 8 ranks``, ``every 8th rank from 0``.

    Args:
        ranks: what to write.
        size: world size, if "all" may be said.
        noun: rank or node.
    """
    if not ranks.ranges:
        return f"no {noun}"
    number = len(ranks)
    if size is not None and number == size and number > 1:
        return f"both {noun}s" if number == 2 else f"all {number:,} {noun}s"
    if number == 1:
        return f"{noun} {ranks}"
    stride = _describe_stride(ranks, noun)
    if stride:
        return stride
    shown = ", ".join(_range(each) for each in ranks.ranges[:RANGES_SHOWN])
    rest = sum(high - low + 1 for low, high in ranks.ranges[RANGES_SHOWN:])
    return f"{noun}s {shown}" + (f" … and {rest:,} more" if rest else "")


def _range(each: tuple[int, int]) -> str:
    low, high = each
    return str(low) if low == high else f"{low}-{high}"


def _describe_stride(ranks: RankSet, noun: str) -> str | None:
    """Words for ranks that repeat at a fixed distance; None where they do not or where a list is as short."""
    ranges = ranks.ranges
    if len(ranges) <= RANGES_SHOWN:
        return None
    step = ranges[1][0] - ranges[0][0]
    width = ranges[0][1] - ranges[0][0]
    if any(b[0] - a[0] != step or b[1] - b[0] != width for a, b in itertools.pairwise(ranges)):
        return None
    first = ", ".join(_range(each) for each in ranges[:3])
    return f"{noun}s {first} … {_range(ranges[-1])} ({width + 1} of every {step}, {len(ranks):,} in all)"


_NUMBERED = re.compile(r"^(.*?)(\d{1,18})(\D*)$", re.DOTALL)


def fold_hosts(hosts: Sequence[str]) -> str:
    """Return host names in few words; many numbered ones become ``node-[0000-2047]``."""
    if len(hosts) <= HOSTS_SHOWN:
        return ", ".join(hosts)
    groups: dict[tuple[str, int, str], list[int]] = {}
    plain: list[str] = []
    for host in hosts:
        match = _NUMBERED.match(host)
        if match is None:
            plain.append(host)
        else:
            groups.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
    parts = [_fold_group(key, numbers) for key, numbers in groups.items()] + plain
    if len(parts) > RANGES_SHOWN:
        return ", ".join(parts[:RANGES_SHOWN]) + f" … ({len(hosts):,} hosts in all)"
    return ", ".join(parts)


def _fold_group(key: tuple[str, int, str], numbers: list[int]) -> str:
    prefix, width, suffix = key
    ranges = RankSet(numbers).ranges
    texts = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
        for low, high in ranges[:RANGES_SHOWN]
    ]
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{prefix}{texts[0]}{suffix}"
    more = f",… {len(ranges) - RANGES_SHOWN:,} more ranges" if len(ranges) > RANGES_SHOWN else ""
    return f"{prefix}[{','.join(texts)}{more}]{suffix}"


def is_known(value: float | None) -> TypeGuard[float]:
    """Return whether a measurement is a number; a report that was read back may hold null for any."""
    return value is not None and math.isfinite(value)


def format_bytes(number: float | None) -> str:
    """Return bytes in binary units: ``64 MiB``."""
    if not is_known(number):
        return "unknown"
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{_digits(value)} {unit}"


def format_seconds(seconds: float | None) -> str:
    """Return a duration: ``61 µs``, ``3.2 ms``, ``2.7 s``, ``12 m 04 s``."""
    if not is_known(seconds):
        return "unknown"
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 1:
            return f"{_digits(seconds * factor)} {unit}"
    return "0 s" if seconds == 0 else f"{_digits(seconds * 1e6)} µs"


def format_bandwidth(gigabytes: float | None) -> str:
    """Return GB/s (1e9 bytes), or MB/s below a hundredth of it."""
    if not is_known(gigabytes):
        return "unknown"
    if 0 < abs(gigabytes) < 0.01:
        return f"{_digits(gigabytes * 1e3)} MB/s"
    return f"{_digits(gigabytes)} GB/s"


def format_share(share: float) -> str:
    """Return a part of the time in per cent, in two digits."""
    return f"{share * 100:.2g} %" if share >= 1e-4 else "less than 0.01 %"


def _digits(value: float) -> str:
    """Three significant digits without an exponent or trailing zeros."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def join_words(words: Iterable[str]) -> str:
    """Return ``a, b and c``."""
    listed = list(words)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"
