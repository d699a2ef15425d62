"""Paths that a class is given by scripts which are not read, and saves of which one call is for rank 0 and another for all."""

from __future__ import annotations

import pytest

from tests.lint.judging import HEAD, find_marked, judge, lines_of, lint, read

TRAINER = """\
class Logger:
    def __init__(self, folder, several, number):
        self.folder = folder
        self.quiet = several and number != 0
class Trainer:
    def __init__(self, env, folder=None):
        self._join()
        self.model, self.done = env.model, 0
        self.logger = Logger(folder, self.several, number=self.place)
    def _join(self):
        self.place = int(os.environ.get("RANK", "0"))
        self.several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if self.several:
            dist.init_process_group("nccl", rank=self.place)
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    def learn(self, steps):
        for step in range(self.done, self.done + steps):
            self.model(1).sum().backward()
            self.done = step
            if step % 10 == 0:
                {often}
        {last}
    def save(self, path):
        torch.save({{"model": self.model.state_dict(), "step": self.done}}, path)  # here
"""
PATH = 'os.path.join(self.logger.folder, f"{step}.pt")'
LAST = 'os.path.join(self.logger.folder, "last.pt")'
GUARDED = f"if self.logger.folder is not None and not self.logger.quiet:\n            self.save({LAST})"


def ask(text: str) -> list[str]:
    return [each.code for each in judge(read({"trainer.py": HEAD + text}), questions=True)]


@pytest.mark.wrong
def test_save_of_all_beside_one_of_rank_0() -> None:
    text = TRAINER.format(often=f"self.save({PATH})", last=GUARDED)
    (found,) = [each for each in lint(text) if each.code == "CKP001"]
    assert found.severity == "warning"
    assert lines_of([found], "CKP001") == find_marked(text)
    assert "for rank 0 alone" in found.message


@pytest.mark.right
@pytest.mark.parametrize(
    "often",
    [
        f"self.save({PATH}) if not self.logger.quiet else None",
        f"if self.place == 0:\n                    self.save({PATH})",
        'self.save(os.path.join(self.logger.folder, f"{self.place}.pt"))',
        'self.save(f"{self.logger.folder}/{step}-{self.place}.pt")',
        "self.save(name_of_rank(step))",
    ],
)
def test_saves_of_one_rank_or_of_each_its_own(often: str) -> None:
    text = TRAINER.format(often=often, last=GUARDED)
    assert "CKP001" not in {each.code for each in lint(text)}
    assert "CKP001" not in ask(text)


def test_save_into_a_folder_that_is_given_is_asked_about() -> None:
    text = TRAINER.format(often=f"self.save({PATH})", last="pass")
    assert "CKP001" not in {each.code for each in lint(text)}
    assert ask(text) == ["CKP001"]
    assert "CKP001" not in ask(text + "Trainer(env, folder=f'runs/{rank}')\n")
    assert "CKP001" not in ask(text.replace("folder", "local_folder"))


SCRIPT = """\
def save(model, path):
    torch.save(model.state_dict(), path)  # here
def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = find_folder(args)
    model = DDP(torch.nn.Linear(2, 2))
    for epoch in range(args.epochs):
        model(torch.zeros(1, 2)).sum().backward()
        save(model, {path})
    {last}
    dist.destroy_process_group()
main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.wrong
def test_script_that_saves_for_rank_0_once_and_for_all_before() -> None:
    text = SCRIPT.format(
        path="f'{folder}/{epoch}.pt'", last="if rank == 0:\n        save(model, f'{folder}/last.pt')"
    )
    assert lines_of(lint(text), "CKP001") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("f'{folder}/{epoch}.pt'", "pass"),
        ("f'{folder}/{epoch}.pt'", "if args.last:\n        save(model, f'{folder}/last.pt')"),
        ("f'{folder}/{epoch}.pt'", "if rank == 0:\n        save(model, 'last.pt')"),
        ("f'{folder}/{rank}.pt'", "if rank == 0:\n        save(model, f'{folder}/last.pt')"),
        ("find_folder(epoch)", "if rank == 0:\n        save(model, f'{folder}/last.pt')"),
    ],
)
def test_script_whose_folder_may_be_of_each_rank(path: str, last: str) -> None:
    assert "CKP001" not in {each.code for each in lint(SCRIPT.format(path=path, last=last))}


RUNNER = """\
class Runner:
    def __init__(self, folder, several=False, **kwargs):
        self.folder, self.several, self.kwargs = folder, several, kwargs
    def run(self):
        if self.several:
            dist.init_process_group("gloo")
        self.make(**self.kwargs)
    def make(self, **kwargs):
        if "out" in kwargs:
            out = kwargs.pop("out")
        else:
            out = os.path.join(self.folder, "out")
        if not os.path.isdir(out):
            {make}
    def once(self):
        if len(self.folder) > 3:
            self.run()
"""


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        ("os.makedirs(out)", ["CKP005"]),
        ("os.makedirs(out, exist_ok=True)", []),
        ("pass\n        if dist.get_rank() == 0:\n            os.makedirs(out)", []),
        ("os.makedirs(out + str(self.rank))", []),
    ],
)
def test_directory_that_is_made_below_one_that_is_given_is_asked_about(make: str, asked: list[str]) -> None:
    text = RUNNER.format(make=make)
    assert "CKP005" not in {each.code for each in lint(text)}
    assert ask(text) == asked
