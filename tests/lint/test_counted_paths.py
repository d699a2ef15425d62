"""Files that all ranks write under a number that they count: of steps, in a variable or in an attribute of a trainer."""

from __future__ import annotations

import pytest

from tests.lint.judging import HEAD, find_marked, lines_of, lint

SCRIPT = """\
def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(2, 2))
    saved = torch.load(args.resume, map_location=f"cuda:{{rank}}")
    step = {start}
    for epoch in range(args.epochs):
        for batch in range(100):
            model(torch.zeros(1, 2)).sum().backward()
            {count}
            if step % args.every == 0:
                torch.save(model.state_dict(), os.path.join(args.out, {name}))  # here
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""
PARTS = {"start": "0", "count": "step += 1", "name": "f'{step}.pt'"}


@pytest.mark.wrong
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"start": "saved['step']"},
        {"count": "step += args.batch"},
        {"count": "if (batch + 1) % args.accumulate == 0:\n                step += 1"},
        {"name": "'step-%d.pt' % step"},
    ],
)
def test_save_under_the_number_of_the_step(parts: dict[str, str]) -> None:
    text = SCRIPT.format(**PARTS | parts)
    found = lint(text)
    assert lines_of(found, "CKP001") == find_marked(text)
    assert {each.severity for each in found if each.code == "CKP001"} == {"warning"}


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {"start": "rank"},
        {"count": "step += rank"},
        {"count": "if rank == 0:\n                step += 1"},
        {"name": "f'{step}-{rank}.pt'"},
        {"count": "step += torch.randint(9, (1,)).item()"},
    ],
)
def test_save_under_a_number_of_the_rank(parts: dict[str, str]) -> None:
    assert lines_of(lint(SCRIPT.format(**PARTS | parts)), "CKP001") == set()


TRAINER = """\
class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.out = args.out
        self.step = 0
        self.model = DDP(torch.nn.Linear(2, 2))
    def load(self, path):
        saved = torch.load(self.args.resume, map_location="cpu")
        self.step = {resumed}
    def save(self):
        torch.save({{"model": self.model.state_dict()}}, os.path.join(self.out, f"{{self.step}}.pt"))  # here
    def train(self):
        for batch in range(100):
            self.model(torch.zeros(1, 2)).sum().backward()
            {count}
            if self.step % self.args.every == 0:
                {save}
"""
START = """
dist.init_process_group("gloo")
trainer = Trainer(argparse.ArgumentParser().parse_args())
trainer.train()
dist.destroy_process_group()
"""
METHODS = {"resumed": "saved['step']", "count": "self.step += 1", "save": "self.save()"}


@pytest.mark.wrong
@pytest.mark.parametrize("start", [START, ""])
def test_trainer_that_saves_on_all_ranks(start: str) -> None:
    """With the script that makes it, and without one."""
    text = TRAINER.format(**METHODS) + start
    assert lines_of(lint(text), "CKP001") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize("start", [START, ""])
@pytest.mark.parametrize(
    "parts",
    [
        {"save": "self.save() if self.rank == 0 else None"},
        {"save": "if self.rank == 0:\n                    self.save()"},
        {"count": "self.step += self.rank"},
        {"count": "if self.rank == 0:\n                self.step += 1"},
        {"resumed": "self.rank"},
        {"save": "pass"},
    ],
)
def test_trainer_that_saves_on_one_rank_or_a_file_of_each(parts: dict[str, str], start: str) -> None:
    assert lines_of(lint(TRAINER.format(**METHODS | parts) + start), "CKP001") == set()


MAKER = """\
class Trainer:
    def __init__(self, args):
        self.model = DDP(torch.nn.Linear(2, 2))
        {made}
    def clean(self, args):
        shutil.rmtree(args.out)
    def train(self, args):
        self.model(torch.zeros(1, 2)).sum().backward()
        {trained}
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "parts",
    [{"made": "os.makedirs(args.out)  # here"}, {"trained": "shutil.rmtree(args.out)  # here"}],
)
def test_class_whose_methods_race_for_a_directory(parts: dict[str, str]) -> None:
    text = MAKER.format(**{"made": "pass", "trained": "pass"} | parts)
    assert lines_of(lint(text), "CKP005") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"made": "os.makedirs(args.out, exist_ok=True)"},
        {"made": "if dist.get_rank() == 0:\n            os.makedirs(args.out)"},
        {"made": "os.makedirs(args.local_dir)"},
    ],
)
def test_class_whose_methods_do_not_race(parts: dict[str, str]) -> None:
    """What no method of all ranks calls may be called on one."""
    assert lint(MAKER.format(**{"made": "pass", "trained": "pass"} | parts), head=HEAD) == []
