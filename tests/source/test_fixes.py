"""Corrections change one argument and no other byte, or nothing."""

from __future__ import annotations

import ast

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.fixes import Refused, Wanted, correct, is_correctable


def wanted(text: bytes, rule: str, name: str, **details: str) -> list[Wanted]:
    """What a rule would say of each call of one name."""
    script = parse_script(text, "train.py", whatever=True)
    assert script.tree is not None
    places = [
        script.place(node)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)
    ]
    return [Wanted(rule, place.line, place.column, place.text, details) for place in places]


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
    calls = wanted(before, "local-rank-option", "add_argument", has="--local_rank", lacks="--local-rank")
    after, reasons = correct(before, "train.py", calls)
    assert after == b"p.add_argument('-l', '--local_rank', '--local-rank', type=int)\n"
    assert reasons == []


DIST = b"import torch\nimport torch.distributed as dist\n"
TEST = b"if not dist.is_initialized() or dist.get_rank() == 0:"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DIST + b"torch.save(s, p)\n", DIST + TEST + b"\n    torch.save(s, p)\n"),
        (DIST + b"for e in x:\n\ttorch.save(m.state_dict(), p)  # keep\n\tf()\n",
         DIST + b"for e in x:\n\t" + TEST + b"\n\t\ttorch.save(m.state_dict(), p)  # keep\n\tf()\n"),
        (DIST + b"def f():\r\n  torch.save(\r\n    {'m': m.state_dict()},\r\n    os.path.join(d, f'{e}.pt'))\r\n",
         DIST + b"def f():\r\n  " + TEST + b"\r\n      torch.save(\r\n        {'m': m.state_dict()},\r\n        os.path.join(d, f'{e}.pt'))\r\n"),
        (b"import torch\ntorch.save(s, p)", b"import torch\nif not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:\n    torch.save(s, p)"),
        (b"from torch import distributed as d, save\nsave(s, p)\n", b"from torch import distributed as d, save\nif not d.is_initialized() or d.get_rank() == 0:\n    save(s, p)\n"),
    ],
)  # fmt: skip
def test_first_rank_alone_saves(before: bytes, after: bytes) -> None:
    assert correct(before, "train.py", wanted(before, "write-raced", "save", kind="checkpoint")) == (
        after,
        [],
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"import torch\ns = torch.load(p)\ntorch.save(s, p)\n", "is also used in this function"),
        (b"import torch\ntorch.save(s, p)\nshutil.copyfile(p, q)\n", "is also used in this function"),
        (b"import torch\ntorch.save(s, f=p)\nos.replace(a, b)\n", "is also used in this function"),
        (b"import torch\ntorch.save(s, p + 'x')\nkeep(name=p + 'x')\n", "is also used in this function"),
        (b"import torch\ntorch.save(gather(s), p)\n", "is computed there"),
        (
            b"import torch\nfrom torch.distributed.fsdp import x\ntorch.save(s, p)\n",
            "sharded across the ranks",
        ),
        (b"import torch\nx = 1; torch.save(s, p)\n", "shares its line"),
        (b"import torch\ntorch.save(s, p); x = 1\n", "shares its line"),
        (b"import torch\nif x: torch.save(s, p)\n", "shares its line"),
        (b"import torch\ntorch.save(s, '''a\nb''')\n", "multi-line string"),
        (b"from torch import save\nsave(s, p)\n", "not imported under a name"),
        (b"import torch\ndef f(torch):\n    torch.save(s, p)\n", "not imported under a name"),
        (b"import torch\nx = torch.save(s, p)\n", "a form that --fix does not edit"),
    ],
)
def test_what_others_may_need_is_left_to_all(text: bytes, reason: str) -> None:
    after, reasons = correct(text, "train.py", wanted(text, "write-raced", "save", kind="checkpoint"))
    assert (after, len(reasons)) == (text, 1)
    assert reason in reasons[0]


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


def test_only_checkpoints_are_left_to_the_first_rank() -> None:
    assert is_correctable("write-raced", {"kind": "checkpoint", "path": "p"})
    assert not is_correctable("write-raced", {"kind": "text", "path": "checkpoint"})
    assert not is_correctable("unwrapped", {})
