"""The pages in docs are the pages of the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_code_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
