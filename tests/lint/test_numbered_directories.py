"""Directories that each rank numbers by what it finds there: one that looks later takes the next number."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

SCRIPT = """\
from glob import glob
from pathlib import Path
def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    {body}
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""
COUNTED = """\
    os.makedirs(args.results, exist_ok=True)
    number = {count}
    folder = f"{{args.results}}/{{number:03d}}-{{args.model}}"
    {between}
    os.makedirs(folder, exist_ok=True)  # here
"""
WRONG = {
    "a pattern": COUNTED.format(count="len(glob(f'{args.results}/*'))", between="pass"),
    "a list": COUNTED.format(count="len(os.listdir(args.results))", between="pass"),
    "a path": COUNTED.format(count="len(list(Path(args.results).iterdir())) + 1", between="pass"),
    "a path that is made": """\
    root = Path(args.results)
    folder = root / f"run{len(sorted(root.glob('run*')))}"
    folder.mkdir(parents=True)  # here
""",
    "a loop": """\
    number = 0
    folder = os.path.join(args.results, str(number))
    while os.path.exists(folder):
        number += 1
        folder = os.path.join(args.results, str(number))
    os.makedirs(folder, exist_ok=True)  # here
""",
}
RIGHT = {
    "rank 0 alone": """\
    if rank == 0:
        folder = f"{args.results}/{len(os.listdir(args.results))}"
        os.makedirs(folder, exist_ok=True)
""",
    "ranks meet": COUNTED.format(count="len(os.listdir(args.results))", between="dist.barrier()"),
    "the name is sent": COUNTED.format(
        count="len(os.listdir(args.results))",
        between="names = [folder]\n    dist.broadcast_object_list(names)\n    folder = names[0]",
    ),
    "each rank has one": COUNTED.format(
        count="len(os.listdir(args.results))", between="folder = f'{folder}-{rank}'"
    ),
    "another directory": COUNTED.format(count="len(os.listdir(args.images))", between="pass"),
    "a number of its own": COUNTED.format(count="len(args.model)", between="pass"),
    "a loop that waits": """\
    while not os.path.exists(args.results):
        pass
    os.makedirs(args.results, exist_ok=True)
""",
    "it is not made": "folder = f'{args.results}/{len(os.listdir(args.results))}'\n    print(folder)",
}


def write(body: str) -> str:
    return SCRIPT.format(body=body.strip())


@pytest.mark.wrong
@pytest.mark.parametrize("name", WRONG)
def test_directory_that_each_rank_numbers(name: str) -> None:
    text = write(WRONG[name])
    found = [each for each in lint(text) if each.code == "CKP005"]
    assert lines_of(found, "CKP005") == find_marked(text)
    assert {each.severity for each in found} == {"warning"}


@pytest.mark.wrong
def test_directory_that_a_function_numbers() -> None:
    text = """
    def name(root):
        return os.path.join(root, "run" + str(len(os.listdir(root))))
    def make(args):
        folder = name(args.results)
        os.makedirs(folder, exist_ok=True)  # here
    dist.init_process_group("gloo")
    make(argparse.ArgumentParser().parse_args())
    """
    assert lines_of(lint(text), "CKP005") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize("name", RIGHT)
def test_directory_of_one_number_for_all(name: str) -> None:
    assert "CKP005" not in {each.code for each in lint(write(RIGHT[name]))}


@pytest.mark.right
def test_directory_that_is_numbered_before_the_ranks_start() -> None:
    text = """
    def work(rank, folder):
        dist.init_process_group("gloo", rank=rank, world_size=4)
        dist.destroy_process_group()
    if __name__ == "__main__":
        args = argparse.ArgumentParser().parse_args()
        folder = f"{args.results}/{len(os.listdir(args.results))}"
        os.makedirs(folder, exist_ok=True)
        mp.spawn(work, (folder,), 4)
    """
    assert lint(text) == []
