"""What reading keeps for the time of one look at files: found once, and freed with them."""

from __future__ import annotations

import ast
import contextlib
import gc
import random
from pathlib import Path

import ddpdoctor
from ddpdoctor.cli import main
from ddpdoctor.source.files.statements import walk_statements
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.programs import follow_all

SCRIPT = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader):
    model = DDP(model)
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        if dist.get_rank() == 0:
            dist.all_reduce(loss)

if __name__ == "__main__":
    dist.init_process_group()
    train(make_model(), make_loader())
"""


def test_nothing_of_the_files_is_held_after_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert [each.code for each in ddpdoctor.lint(path).findings] == ["COL002"]
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Files)] == []


def test_garbage_is_collected_again_after_the_command(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    try:
        assert main(["lint", str(path), "-q"]) == 1
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_what_is_found_of_all_files_is_found_once() -> None:
    asked = []

    @once
    def find(files: Files) -> int:
        asked.append(files)
        if len(asked) == 1:
            raise ValueError
        return len(asked)

    one, other = Files([]), Files([])
    with contextlib.suppress(ValueError):
        find(one)
    assert [find(one), find(one), find(other), find(one)] == [2, 2, 3, 2]
    assert asked == [one, one, other]


def test_modules_lead_to_all_that_any_number_of_steps_reaches() -> None:
    draw = random.Random(7)
    for _ in range(300):
        count = draw.randrange(1, 12)
        steps = [{draw.randrange(count) for _ in range(draw.randrange(3))} for _ in range(count)]
        assert follow_all(steps) == [_reach(steps, start) for start in range(count)], steps
    chain = [{number + 1} if number < 4999 else set() for number in range(5000)]
    assert follow_all(chain)[4998] == (1 << 4998) | (1 << 4999)


def _reach(steps: list[set[int]], start: int) -> int:
    found, waiting = {start}, [start]
    while waiting:
        fresh = steps[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return sum(1 << each for each in found)


def test_statements_come_in_the_order_of_all_nodes() -> None:
    tree = ast.parse(Path(ast.__file__).read_text("utf-8"))
    statements = [each for each in ast.walk(tree) if isinstance(each, (ast.stmt, ast.excepthandler))]
    found = [each for each in walk_statements(tree) if isinstance(each, (ast.stmt, ast.excepthandler))]
    assert found == statements
