"""Conditions around a line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpdoctor.source import find_conditions

SOURCE = """
    import torch.distributed as dist
    if ready:
        def train(rank, loader):
            for batch in loader:
                if rank == 0:
                    a()
                elif rank == 1:
                    b()
                else:
                    c()
            if rank != 0:
                return
            with lock:
                d()
            try:
                e()
            except OSError:
                f()
    while True:
        g()
"""
LINES = SOURCE.strip("\n").splitlines()


def conditions(tmp_path: Path, call: str) -> list[tuple[str, str]]:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SOURCE).lstrip("\n"))
    line = next(n for n, text in enumerate(LINES, 1) if text.strip() == f"{call}()")
    return [(found.kind, found.text) for found in find_conditions(str(path), line)]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("a", [("if", "if rank == 0:"), ("for", "for batch in loader:")]),
        ("b", [("if", "elif rank == 1:"), ("else", "if rank == 0:"), ("for", "for batch in loader:")]),
        ("c", [("else", "elif rank == 1:"), ("else", "if rank == 0:"), ("for", "for batch in loader:")]),
        ("d", [("unless", "if rank != 0:")]),
        ("e", [("unless", "if rank != 0:")]),
        ("f", [("except", "except OSError:"), ("unless", "if rank != 0:")]),
        ("g", [("while", "while True:")]),
    ],
)
def test_the_innermost_comes_first(tmp_path: Path, call: str, expected: list[tuple[str, str]]) -> None:
    assert conditions(tmp_path, call) == expected


def test_what_is_around_a_function_does_not_count(tmp_path: Path) -> None:
    assert all("ready" not in text for _, text in conditions(tmp_path, "a"))


@pytest.mark.parametrize("data", [b"if x:\n  y(", b"\0", b"", b"\xff\xfe"])
def test_what_cannot_be_parsed_gives_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(data)
    assert find_conditions(str(path), 1) == ()
    assert find_conditions(str(tmp_path / "missing.py"), 1) == ()
