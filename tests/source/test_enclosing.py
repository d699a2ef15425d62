"""Conditions around a line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpdoctor.source import find_conditions, find_handler, find_loss

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


LOOPS = """
    def train(loader):
        for epoch in range(9):
            step()
            if validate() > best:
                if patience == 0:
                    break
            for batch in loader:
                if batch is None:
                    break
        while True:
            with open(path) as file:
                f()
            if os.path.exists(path):
                with open(path) as file:
                    return file.read()
            g()
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (3, [("until", "if patience == 0:"), ("for", "for epoch in range(9):")]),
        (8, [("until", "if batch is None:"), ("for", "for batch in loader:"),
             ("until", "if patience == 0:"), ("for", "for epoch in range(9):")]),
        (16, [("unless", "if os.path.exists(path):"), ("while", "while True:")]),
    ],
)  # fmt: skip
def test_tests_behind_which_a_loop_ends_come_before_it(
    tmp_path: Path, line: int, expected: list[tuple[str, str]]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(LOOPS).lstrip("\n"))
    assert [(found.kind, found.text) for found in find_conditions(str(path), line)] == expected


HANDLERS = """
def train(loader):
    try:
        for batch in loader:
            try:
                a()
            except ValueError:
                continue
            try:
                b()
            except KeyError as error:
                raise RuntimeError from error
            try:
                c()
            except KeyError:
                sys.exit(1)
            except ValueError:
                pass
            except OSError:
                pass
    except OSError:
        print("lost")
    d()
    try:
        def inner():
            e()
    except ValueError:
        pass
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [("a", "except ValueError:"), ("b", "except OSError:"), ("c", None), ("d", None), ("e", None)],
)
def test_the_except_that_goes_on(tmp_path: Path, call: str, expected: str | None) -> None:
    path = tmp_path / "train.py"
    path.write_text(HANDLERS.lstrip("\n"))
    line = next(
        n for n, text in enumerate(HANDLERS.strip("\n").splitlines(), 1) if text.strip() == f"{call}()"
    )
    found = find_handler(str(path), line)
    assert (found.text if found is not None else None) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = criterion(out)\nloss.backward()", "loss = criterion(out)"),
        ("loss = criterion(out)\nloss = loss / steps\nloss.backward()", "loss = criterion(out)"),
        ("loss = criterion(out)\nscaler.scale(loss).backward()", "loss = criterion(out)"),
        ("loss = criterion(out)\naccelerator.backward(loss)", "loss = criterion(out)"),
        ("loss: Tensor = criterion(out)\n(loss / steps).backward()", "loss: Tensor = criterion(out)"),
        (
            "loss = criterion(\n    out)\nwith scope:\n    loss.backward(retain_graph=True)",
            "loss = criterion(",
        ),
        ("if a:\n    loss = one(out)\nelse:\n    loss = other(out)\nloss.backward()", None),
        ("loss = criterion(out)\nloss += auxiliary\nloss.backward()", None),
        ("loss, out = model(batch)\nloss.backward()", None),
        ("criterion(out).backward()", None),
        ("def step():\n    loss.backward()\nloss = criterion(out)\nstep()", None),
        ("loss = 1\ndef step(out):\n    loss = criterion(out)\n    loss.backward()", "loss = criterion(out)"),
        ("loss = criterion(out)\nother.backward()", None),
        ("loss.backward()\nloss = criterion(out)", None),
    ],
)
def test_the_statement_that_gives_a_loss_its_value(tmp_path: Path, body: str, expected: str | None) -> None:
    path = tmp_path / "train.py"
    path.write_text(body)
    line = next(n for n, text in enumerate(body.splitlines(), 1) if ".backward(" in text)
    found = find_loss(str(path), line)
    assert (found[1] if found is not None else None) == expected
