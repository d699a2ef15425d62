"""Programs in which nothing makes a process group, behind choices of the user and numbers of GPUs."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, lint

UNMADE = """\
import unread
RANK = int(os.getenv("RANK", -1))
WORLD = 1
def join():
    global WORLD
    WORLD = unread.world_size()
def train(args, count):
    {make}
    model = unread.models(args)
    {before}
    if {test}:
        model = DDP(model)
    dist.broadcast(torch.ones(1), 0) if {test} else None
def main(args):
    {outer}
    train(args, {count})
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("test", "count", "before", "outer"),
    [
        ("count > 1", "torch.cuda.device_count()", "pass", "pass"),
        ("count >= 2", "int(os.environ['WORLD_SIZE'])", "pass", "pass"),
        ("args.num_gpus > 1", "1", "args.num_gpus = torch.cuda.device_count()", "pass"),
        ("RANK != -1", "1", "pass", "pass"),
        (
            "count > 1",
            "torch.cuda.device_count()",
            "if count == 1 and args.index != 0:\n        return",
            "pass",
        ),
        ("count > 1", "torch.cuda.device_count()", "pass", "if args.command != 'train':\n        return"),
        (
            "count > 1",
            "torch.cuda.device_count()",
            "pass",
            "if not os.path.exists(args.data):\n        return",
        ),
    ],
)
def test_group_that_nothing_makes_behind_choices_of_the_user(
    test: str, count: str, before: str, outer: str
) -> None:
    text = UNMADE.format(make="pass", test=test, count=count, before=before, outer=outer)
    assert "ENV019" in {each.code for each in lint(text)}
    made = UNMADE.format(
        make='dist.init_process_group("nccl")', test=test, count=count, before=before, outer=outer
    )
    assert "ENV019" not in {each.code for each in (*lint(made), *ask(made))}


@pytest.mark.right
@pytest.mark.parametrize(
    ("test", "count", "outer"),
    [
        ("count > 1", "unread.world_size()", "pass"),
        ("count > 1", "args.world_size", "pass"),
        ("WORLD != 1", "1", "pass"),
        ("count > 1", "2", "pass"),
        ("count == 1", "torch.cuda.device_count()", "pass"),
        ("count > 1 and dist.is_initialized()", "torch.cuda.device_count()", "pass"),
        ("count > 1", "torch.cuda.device_count()", "if not args.multi:\n        return"),
        ("count > 1", "torch.cuda.device_count()", "if unread.alone():\n        return"),
    ],
)
def test_group_that_this_program_may_do_without(test: str, count: str, outer: str) -> None:
    text = UNMADE.format(make="pass", test=test, count=count, before="pass", outer=outer)
    assert "ENV019" not in {each.code for each in lint(text)}


@pytest.mark.parametrize(("mode", "found"), [("'test'", False), ("args.mode", True)])
def test_side_of_a_function_that_this_program_never_takes(mode: str, *, found: bool) -> None:
    text = f"""
    def load(args, data, mode):
        if mode == "train":
            return DistributedSampler(data)
    if __name__ == "__main__":
        load(argparse.ArgumentParser().parse_args(), [1, 2], {mode})
    """
    assert ("ENV019" in {each.code for each in lint(text)}) is found


def test_number_that_a_spawned_function_is_given() -> None:
    text = """
    def work(rank, world):
        if world > 1:
            model = DDP(torch.nn.Linear(2, 2))
    def main(args):
        if args.world < 2:
            work(0, 1)
        else:
            mp.spawn(work, (args.world,), nprocs=args.world)
    if __name__ == "__main__":
        main(argparse.ArgumentParser().parse_args())
    """
    assert "ENV019" in {each.code for each in lint(text)}
    assert "ENV019" not in {each.code for each in lint(text.replace("DDP(torch", "print(torch"))}


FIXED = """
from types import SimpleNamespace
{made}
class Config:
    mode: str = "fast"
    reduce: bool = False
def evaluate(split):
    if split == "train":
        dist.barrier()
def main():
    args = argparse.ArgumentParser().parse_args()
    if {test}:
        dist.barrier()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("made", "test", "found"),
    [
        ("REDUCE = False", "REDUCE", False),
        ("REDUCE = True", "REDUCE", True),
        ("REDUCE = os.path.exists('reduce')", "REDUCE", True),
        ("table = {'reduce': False, 'mode': 'fast'}", "table['reduce']", False),
        ("table = {'reduce': False, 'mode': 'fast'}", "table['mode'] == 'fast'", True),
        ("space = SimpleNamespace(reduce=False)", "space.reduce", False),
        ("conf = Config()", "conf.mode == 'slow'", False),
        ("conf = Config()", "conf.mode != 'slow'", True),
        ("conf = Config(mode=os.environ['MODE'])", "conf.mode == 'slow'", True),
        ("conf = tyro.cli(Config)", "conf.mode == 'slow'", True),
        ("conf = Config()", "getattr(conf, 'other', False)", False),
        ("conf = Config()", "getattr(conf, 'reduce', False)", False),
        ("conf = Config()", "Config.reduce", False),
    ],
)
def test_what_the_program_gives_by_itself_is_no_choice(made: str, test: str, *, found: bool) -> None:
    assert ("ENV019" in {each.code for each in lint(FIXED.format(made=made, test=test))}) is found


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("for split in ('val', 'test'):\n        evaluate(split)", False),
        ("for split in args.splits:\n        evaluate(split)", True),
        ("evaluate(args.split)", True),
    ],
)
def test_side_that_a_loop_over_constants_never_takes(start: str, *, found: bool) -> None:
    text = FIXED.format(made="pass", test="False").replace(
        "    if False:\n        dist.barrier()", f"    {start}"
    )
    assert ("ENV019" in {each.code for each in lint(text)}) is found


@pytest.mark.right
@pytest.mark.parametrize(
    "made",
    [
        "start = dist.init_process_group\nstart('nccl')",
        "start = functools.partial(dist.init_process_group, backend='nccl')\nstart()",
        "BACKENDS = {'nccl': dist.init_process_group}\nBACKENDS['nccl']('nccl')",
        "def begin(start=dist.init_process_group):\n    start('nccl')\nbegin()",
    ],
)
def test_group_that_is_made_under_another_name(made: str) -> None:
    text = (
        "import functools\n"
        + made
        + """
if __name__ == "__main__":
    DDP(torch.nn.Linear(2, 2))
"""
    )
    assert "ENV019" not in {each.code for each in lint(text)}
