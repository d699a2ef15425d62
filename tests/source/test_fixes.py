"""Corrections change one argument and no other byte, or nothing."""

from __future__ import annotations

import ast

import pytest

from ddpdoctor.source.fixes import Refused, Wanted, correct
from ddpdoctor.source.reading import parse_script


def wanted(text: bytes, rule: str, name: str, *names: str) -> list[Wanted]:
    """What a rule would say of each call of one name."""
    script = parse_script(text, "train.py", whatever=True)
    assert script.tree is not None
    places = [
        script.place(node)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)
    ]
    return [Wanted(rule, place.line, place.column, place.text, names) for place in places]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"x = torch.load(p)\n", b'x = torch.load(p, map_location="cpu")\n'),
        (b"x = torch.load(p)['m']", b"x = torch.load(p, map_location=\"cpu\")['m']"),
        (b"x = torch.load(\r\n    p,  # \xc3\xa9\r\n)\r\n", b'x = torch.load(\r\n    p, map_location="cpu",  # \xc3\xa9\r\n)\r\n'),
        (b"\xef\xbb\xbfx = torch.load(p)\n", b'\xef\xbb\xbfx = torch.load(p, map_location="cpu")\n'),
        (b"s = '\xc3\xa9\xf0\x9f\x98\x80'; x = torch.load(f, weights_only=True)\x0c\n",
         b"s = '\xc3\xa9\xf0\x9f\x98\x80'; x = torch.load(f, weights_only=True, map_location=\"cpu\")\x0c\n"),
        (b"a, b = torch.load(p), torch.load(q)\n",
         b'a, b = torch.load(p, map_location="cpu"), torch.load(q, map_location="cpu")\n'),
        (b"x = torch.load(p\n, weights_only = True )\r", b'x = torch.load(p\n, weights_only = True, map_location="cpu" )\r'),
    ],
)  # fmt: skip
def test_load_gets_a_device(before: bytes, after: bytes) -> None:
    assert correct(before, "train.py", wanted(before, "load-unmapped", "torch.load")) == (after, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"os.makedirs(p)\n", b"os.makedirs(p, exist_ok=True)\n"),
        (b"Path(p).mkdir()\n", b"Path(p).mkdir(exist_ok=True)\n"),
        (b"out.mkdir(parents=True)\n", b"out.mkdir(parents=True, exist_ok=True)\n"),
    ],
)
def test_directory_may_exist(before: bytes, after: bytes) -> None:
    name = "makedirs" if b"makedirs" in before else "mkdir"
    assert correct(before, "train.py", wanted(before, "directory-raced", name)) == (after, [])


def test_option_gets_its_other_spelling() -> None:
    before = b"p.add_argument('-l', '--local_rank', type=int)\n"
    calls = wanted(before, "local-rank-option", "add_argument", "--local_rank", "--local-rank")
    after, reasons = correct(before, "train.py", calls)
    assert after == b"p.add_argument('-l', '--local_rank', '--local-rank', type=int)\n"
    assert reasons == []


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        (b"x = torch.load((p))\n", "load-unmapped", "torch.load"),
        (b"x = torch.load(p, **more)\n", "load-unmapped", "torch.load"),
        (b"x = torch.load(p, map_location=None)\n", "load-unmapped", "torch.load"),
        (b"os.mkdir(p)\n", "directory-raced", "mkdir"),
        (b"os.makedirs(p, exist_ok=False)\n", "directory-raced", "makedirs"),
        (b"shutil.rmtree(p)\n", "directory-raced", "rmtree"),
        (b"p.mkdir(  # here\n)\n", "directory-raced", "nothing"),
    ],
)
def test_what_cannot_be_edited_safely_is_left(text: bytes, rule: str, name: str) -> None:
    calls = wanted(text, rule, name)
    after, reasons = correct(text, "train.py", calls)
    assert after == text
    assert len(reasons) == len(calls)


def test_changed_or_unreadable_file_is_refused() -> None:
    text = b"x = torch.load(p)\n"
    calls = wanted(text, "load-unmapped", "torch.load")
    for other in (b"y = 1\n" + text, b"x = torch.load(q)\n", b"", b"if x\n", b"x = '\xe9'\n"):
        with pytest.raises(Refused):
            correct(other, "train.py", calls)
    with pytest.raises(Refused, match="notebook"):
        correct(text, "train.ipynb", calls)
    assert correct(text.replace(b" =", b"  ="), "train.py", []) == (b"x  = torch.load(p)\n", [])
