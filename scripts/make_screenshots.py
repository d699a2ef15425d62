"""Take the pictures of the documentation: pages of real runs in headless Chromium, written to docs/images.

Run as ``python scripts/make_screenshots.py [NAME ...]`` from the repository's root, in the environment that
``scripts/dev.sh setup`` makes, on a machine with Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.browser import Browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000
"""Bytes of one picture: a page of the documentation with a few of them stays light."""
WIDE, PHONE = (1280, 800), (390, 844)


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture."""

    name: str
    run: str
    """Which page it shows."""
    scheme: str = "light"
    size: tuple[int, int] = WIDE


RUNS = {
    "hang": ("demo", "uneven-batches"),
    "crash": ("demo", "hidden-exception"),
    "silent": ("demo", "bypassed-wrapper"),
    "incident": ("demo", "incident"),
    "slow": ("case", "slow-rank-data"),
    "check": ("check", ""),
}
"""What is run: a demonstration, a script of tests/faults/cases, or `ddpdoctor check`."""
SHOTS = (
    *(Shot(name, name) for name in RUNS),
    Shot("hang-dark", "hang", "dark"),
    Shot("hang-phone", "hang", "light", PHONE),
)


def make_page(run: str, folder: Path) -> Path:
    """Run what a page is about and return the page.

    Raises:
        FileNotFoundError: it left no page behind.
    """
    how, what = RUNS[run]
    doctor = [sys.executable, "-m", "ddpdoctor"]
    if how == "demo":
        command, place = [*doctor, "demo", what, "--directory", str(folder / run)], folder
    elif how == "case":
        place = folder / run
        shutil.copytree(ROOT / "tests" / "faults" / "cases" / what, place)
        command = [*doctor, "run", "--run-dir", "run", "--nproc", "3", "train.py"]
    else:
        place = folder / run
        place.mkdir()
        command = [*doctor, "check", "--nproc", "2", "--html", "report.html"]
    subprocess.run(command, cwd=place, check=False, capture_output=True)
    pages = [*(folder / run).glob("**/*.html")]
    if not pages:
        raise FileNotFoundError(f"{run}: {' '.join(command)} wrote no page")
    return pages[0]


def take(shot: Shot, page: Path, browser: Browser) -> int:
    """Write one picture and return its bytes.

    Raises:
        ValueError: it is too large for the documentation.
    """
    browser.set_scheme(shot.scheme)
    browser.set_size(*shot.size, mobile=shot.size == PHONE)
    browser.open(page)
    file = IMAGES / f"{shot.name}.png"
    data = shrink(browser.screenshot(file))
    if len(data) > LARGEST:
        raise ValueError(f"{shot.name}.png has {len(data):,} bytes, more than {LARGEST:,}")
    file.write_bytes(data)
    return len(data)


def shrink(png: bytes) -> bytes:
    """Return a picture of at most 256 colors: a page has few, and shades of letters' edges that nobody can tell apart.

    https://www.w3.org/TR/png-3/ describes chunks (5), filters (9) and palettes (11.2.2).
    """
    width, height, rows, step = unpack(png)
    pixels = [row[place : place + 3] for row in rows for place in range(0, len(row), step)]
    counted = Counter(pixels)
    palette = [color for color, _ in counted.most_common(256)]
    numbers = {color: number for number, color in enumerate(palette)}
    for color in counted:
        if color not in numbers:
            nearest = min(
                palette, key=lambda each: sum((a - b) ** 2 for a, b in zip(each, color, strict=True))
            )
            numbers[color] = numbers[nearest]
    flat = bytes(numbers[pixel] for pixel in pixels)
    lines = b"".join(b"\0" + flat[place : place + width] for place in range(0, len(flat), width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return png[:8] + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def unpack(png: bytes) -> tuple[int, int, list[bytes], int]:
    """Return width, height, rows and bytes of a pixel of a picture as Chromium writes it: 8 bits, RGB or RGBA."""
    place, packed = 8, b""
    width = height = step = 0
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        name, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        if name == b"IHDR":
            width, height, _, kind = struct.unpack_from(">IIBB", data)
            step = {2: 3, 6: 4}[kind]
        elif name == b"IDAT":
            packed += data
        place += 12 + length
    raw, rows = zlib.decompress(packed), []
    size = width * step
    above = bytes(size)
    for start in range(0, len(raw), size + 1):
        row = bytearray(raw[start + 1 : start + 1 + size])
        undo(raw[start], row, above, step)
        above = bytes(row)
        rows.append(above)
    return width, height, rows, step


def undo(how: int, row: bytearray, above: bytes, step: int) -> None:
    """Take a filter off a row: 1 left, 2 above, 3 their mean, 4 Paeth."""
    for place in range(len(row) if how else 0):
        left = row[place - step] if place >= step else 0
        if how == 1:
            guess = left
        elif how == 2:
            guess = above[place]
        elif how == 3:
            guess = (left + above[place]) // 2
        else:
            corner = above[place - step] if place >= step else 0
            by = left + above[place] - corner
            guess = min((left, above[place], corner), key=lambda each: abs(by - each))
        row[place] = (row[place] + guess) & 0xFF


def main() -> None:
    """Take the pictures that were asked for, or all."""
    names = [shot.name for shot in SHOTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help=", ".join(names))
    wanted = parser.parse_args().names or names
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-pictures-") as name, Browser() as browser:
        pages: dict[str, Path] = {}
        for shot in SHOTS:
            if shot.name in wanted:
                if shot.run not in pages:
                    pages[shot.run] = make_page(shot.run, Path(name))
                print(f"docs/images/{shot.name}.png: {take(shot, pages[shot.run], browser):,} bytes")


if __name__ == "__main__":
    main()
