"""A job's script, FILE MEGABYTES: writes a training log of that size to stdout, and into FILE how long that took."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BLOCK = 1 << 16
"""What Python writes at once at most is 8 KiB; larger blocks ask more of who reads them."""


def make_block() -> bytes:
    """Return whole lines as training scripts log them, some `BLOCK` bytes."""
    line = "2026-01-31 10:15:{:02d},{:03d} INFO train.py:88] step {}/5000 loss={:.4f} lr=1.0e-04 {:.1f} samples/s\n"
    text = ""
    number = 0
    while len(text) < BLOCK:
        number += 1
        text += line.format(number % 60, number, number, 2.3 + number / 1e4, 512 + number / 7)
    return text.encode()


def main() -> None:
    """Write as fast as it is read."""
    block, wanted = make_block(), int(float(sys.argv[2]) * 1e6)
    began = time.perf_counter()
    while wanted > 0:
        wanted -= os.write(1, block)
    Path(sys.argv[1]).write_text(f"{time.perf_counter() - began:.6f}")


if __name__ == "__main__":
    main()
