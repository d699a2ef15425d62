"""Tests by a number of steps behind which a program averages its parameters."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpdoctor.source.files.periodic import find_rounds
from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.watch.readers.records import Shortener


def read(*texts: str) -> list[tuple[str, int, str]]:
    scripts = [
        parse_script(textwrap.dedent(text).encode(), f"{name}.py")
        for name, text in zip("ab", texts, strict=False)
    ]
    return [(each.file, each.line, each.text) for each in find_rounds(scripts)]


AVERAGE = """
    import torch.distributed as dist

    def average(model):
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            """
            def maybe(self, step):
                if step == 0 or step % self.every:
                    return False
                for mine, shared in zip(self.model.parameters(), self.shared):
                    dist.all_reduce(mine.data)
            """,
            (4, "step == 0 or step % self.every"),
        ),
        (
            """
            for step, batch in enumerate(loader):
                train(batch)
                if (step + 1) % 8 == 0:
                    for p in model.parameters():
                        dist.all_reduce(p.data)
            """,
            (5, "(step + 1) % 8 == 0"),
        ),
        (
            """
            for step in range(100):
                due = step % every == 0
                if due:
                    works = [dist.all_reduce(p, async_op=True) for p in parameters]
            """,
            (5, "due"),
        ),
    ],
)
def test_a_test_by_a_remainder_is_found(text: str, found: tuple[int, str]) -> None:
    assert read("import torch.distributed as dist\n" + textwrap.dedent(text)) == [("a.py", *found)]


def test_one_call_of_the_function_that_averages_is_followed_also_from_another_file() -> None:
    loop = """
        import torch.distributed as dist
        from a import average
        for step in range(100):
            if step % 4 == 0:
                average(model)
    """
    assert read(AVERAGE, loop) == [("b.py", 5, "step % 4 == 0")]


@pytest.mark.parametrize(
    "text",
    [
        AVERAGE + "\n    for step in range(9):\n        average(model)\n",  # each step
        AVERAGE + "\n    if args.average:\n        average(model)\n",  # an option
        """
        import torch.distributed as dist
        for step, batch in enumerate(loader):
            if step % 10 == 0:
                dist.all_reduce(loss)
        """,
        """
        import torch.distributed as dist
        for step in range(100):
            if step % 10 == 0:
                for p in model.parameters():
                    norm = p.grad.norm()
                    dist.all_reduce(norm)
        """,
        """
        import torch.distributed as dist
        for step in range(100):
            if step % 10 == 0:
                for p in model.parameters():
                    dist.all_reduce(p.grad.square().sum())
        """,
        """
        import torch.distributed as dist
        if "%s" % mode == "average":
            for p in model.parameters():
                dist.all_reduce(p.data)
        """,
        """
        import torch.distributed as dist
        for step in range(8):
            if step % 2 == 0:
                print(step)
            else:
                pass
            for p in model.parameters():
                dist.all_reduce(p.data)
        """,
        "def broken(:",
    ],
)
def test_what_is_averaged_in_each_step_or_is_no_parameter_waits_for_nothing(text: str) -> None:
    assert read(text) == []


def test_the_reader_goes_from_the_script_to_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(textwrap.dedent(AVERAGE))
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\nfrom outer import average\n"
        "for step in range(9):\n    if step % 20 == 19:\n        average(model)\n"
    )
    rows = [["/x/site-packages/torch/optim/sgd.py", 10, "step"], [str(script), 3, "<module>"]]
    (found,) = Shortener(tmp_path).find_rounds(rows)
    assert (found.file, found.line, found.source) == ("train.py", 4, "step % 20 == 19")
    assert Shortener(tmp_path).find_rounds([[str(tmp_path / "gone.py"), 3, "f"]]) == ()
    assert Shortener(tmp_path).find_rounds(None) == ()
