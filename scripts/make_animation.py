"""Record a real run in a terminal and write it as an animated SVG, docs/images/run.svg: the picture of the README.

Run as ``python scripts/make_animation.py`` from the repository's root, in the environment that ``scripts/dev.sh setup``
makes. Lines appear when they appeared, with longer waits shortened; torchrun's own lines become one of dots. Where a
reader has asked for reduced motion the last picture is shown. The file asks for nothing: no font, no script.
"""

from __future__ import annotations

import fcntl
import html
import io
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console  # noqa: TID253  # a script, which needs it whatever it does
from rich.terminal_theme import MONOKAI, TerminalTheme  # noqa: TID253
from rich.text import Text  # noqa: TID253

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "run.svg"
DEMO = ROOT / "ddpdoctor" / "cli" / "demos" / "guarded-collective" / "train.py"
COMMAND = ("run", "--nproc", "4", "train.py")
COLUMNS, ROWS = 70, 60
TYPING_S, LONGEST_S, STEP_S = 1.2, 2.0, 0.06
"""How long the command line stands alone; the longest wait that is shown; between lines that came at once."""
NOISE = re.compile(r"^(W\d{4} |torch\.distributed\.elastic)")
"""What torchrun prints when it is asked to stop."""
TOP = "16"
"""Units above the first line that are cut off: rich leaves room for a title bar."""
LAST = "affected"
"""The line of the verdict that is shown last: families of checks and paths follow."""
TEXT = re.compile(r'<text [^>]*clip-path="url\(#[^)]*-line-(\d+)\)"[^>]*>.*?</text>', re.DOTALL)
COLORS = list(MONOKAI.ansi_colors._colors)
COLORS[1] = (255, 107, 129)  # red, with the contrast to the ground that WCAG AA asks for
THEME = TerminalTheme((24, 26, 31), (222, 224, 228), COLORS[:8], COLORS[8:])

FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 TOP {width} {height}" role="img" aria-labelledby="t d">
<title id="t">ddpdoctor run names the root cause of a hang</title>
<desc id="d">DESCRIPTION</desc>
<style>
{unique_id}-x {{}}
text {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; white-space: pre; }}
{styles}
@keyframes show {{ to {{ opacity: 1 }} }}
@media (prefers-reduced-motion: no-preference) {{ .l {{ opacity: 0; animation: show 1ms linear forwards }} }}
</style>
<defs>{lines}</defs>
<rect y="TOP" width="{width}" height="{height}" rx="8" fill="#181a1f"/>
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}
{matrix}
</g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the terminal."""

    seconds: float
    """When it was complete."""
    text: str
    """With its colors as ANSI sequences."""

    @property
    def plain(self) -> str:
        """The text without colors."""
        return Text.from_ansi(self.text).plain


def record(folder: Path) -> list[Line]:
    """Run the command in a terminal of its own and return what it shows."""
    shutil.copy(DEMO, folder)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    began = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", *COMMAND],
        cwd=folder,
        env={**kept, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    lines, rest = [], b""
    while True:
        if not select.select([ours], [], [], 0.2)[0]:
            if job.poll() is not None:
                break
            continue
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        *whole, rest = (rest + data).split(b"\n")
        seconds = time.monotonic() - began
        lines += [Line(seconds, line.decode("utf-8", "replace").rstrip("\r")) for line in whole]
    job.wait()
    os.close(ours)
    return lines


def shorten(lines: list[Line]) -> list[Line]:
    """Return the lines to show: torchrun's own folded, and nothing after the ranks that were affected."""
    kept: list[Line] = []
    for line in lines:
        if NOISE.match(line.plain):
            if kept and kept[-1].plain != "…":
                kept.append(Line(line.seconds, "\x1b[2m…\x1b[0m"))
            continue
        kept.append(line)
        if line.plain.strip().startswith(LAST):
            return kept
    raise ValueError(f"no line begins with {LAST!r}: " + "\n".join(line.plain for line in lines))


def schedule(lines: list[Line]) -> list[float]:
    """Return when each line appears: as recorded, with longer waits shortened."""
    times, now, before = [], TYPING_S, 0.0
    for line in lines:
        now += min(max(line.seconds - before, STEP_S), LONGEST_S)
        before = line.seconds
        times.append(now)
    return times


def draw(lines: list[Line]) -> str:
    """Return the SVG."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    rows = [0.2]  # of the command line
    console.print(Text.from_ansi(f"\x1b[1;32m$\x1b[0m ddpdoctor {' '.join(COMMAND)}"))
    for line, seconds in zip(lines, schedule(lines), strict=True):
        wrapped = Text.from_ansi(line.text).wrap(console, COLUMNS)
        for row in wrapped or [Text("")]:
            console.print(row, no_wrap=True, crop=True)
            rows.append(seconds)
    svg = console.export_svg(theme=THEME, code_format=FORMAT, unique_id="r", font_aspect_ratio=0.61)

    def place(match: re.Match[str]) -> str:
        seconds = rows[min(int(match[1]), len(rows) - 1)]
        return f'<g class="l" style="animation-delay:{seconds:.2f}s">{match[0]}</g>'

    told = " ".join(" ".join(line.plain for line in lines if not NOISE.match(line.plain)).split())
    return (
        TEXT.sub(place, svg)
        .replace("r-x {}\n", "")
        .replace("TOP", TOP)
        .replace("DESCRIPTION", html.escape(told))
    )


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-animation-") as name:
        lines = shorten(record(Path(name)))
    TARGET.write_text(draw(lines), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes, {len(lines)} lines")


if __name__ == "__main__":
    main()
