"""A training is bit by bit the same with and without us, and so are its tracebacks: compared with plain python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.injecting import environment, read_journals, write
from tests.watch.test_watch_levels import START

SCRIPTS = {
    "numbers": """
    import copy, hashlib, io, pickle, random
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4, shuffle=True, num_workers=int(sys.argv[2]))
    for epoch in range(3):
        for batch, in loader:
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex())
    buffer = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], buffer)
    print(hashlib.sha256(buffer.getvalue()).hexdigest(), torch.rand(1).item(), random.getstate()[1][0] > 0)
    again = pickle.loads(pickle.dumps(copy.deepcopy((model, optimizer))))
    print(type(again[0]), list(vars(again[0])), list(vars(again[1])), len(pickle.dumps(again)))
    print(len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks), optimizer.step.__qualname__)
    """,
    "dispatched": """
    from torch.utils._python_dispatch import TorchDispatchMode
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            print(func)
            return func(*args, **(kwargs or {}))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Seen():
        for step in range(3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    """,
    "a step that raises": """
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError("own step")
    model = torch.nn.Linear(3, 1)
    optimizer = Own(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    """,
    "a closure that raises": """
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    def closure():
        raise ArithmeticError("closure")
    optimizer.step(closure)
    """,
    "a batch that is not to be asked": """
    import dataclasses
    touched = []
    class Lazy(list):
        def __iter__(self):
            touched.append("iter")
            raise LookupError("not loaded")
    @dataclasses.dataclass
    class Batch:
        x: object
        later: object = None
        rows: object = dataclasses.field(default_factory=Lazy)
        def __getattribute__(self, name):
            if name == "later":
                touched.append(name)
                raise KeyError("not loaded")
            return object.__getattribute__(self, name)
        def __getattr__(self, name):
            touched.append(name)
            raise KeyError(name)
    class Net(torch.nn.Module):
        ready = False
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 1)
        def named_buffers(self, *args, **kwargs):
            if self.ready:
                raise RuntimeError("not now")
            return super().named_buffers(*args, **kwargs)
        def forward(self, batch):
            return self.a(batch.x)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.ready = True
    for _ in range(3):
        model(Batch(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    print(touched, model.a.weight.sum().item().hex())
    """,
    "a sampler that raises": """
    class Failing(torch.utils.data.Sampler):
        def __iter__(self):
            yield 0
            raise LookupError("no more")
        def __len__(self):
            return 4
    for batch in DataLoader(TensorDataset(torch.zeros(8, 2)), sampler=Failing(), num_workers=int(sys.argv[2])):
        print(batch)
    """,
}
FORWARD = """
    class Net(torch.nn.Module):
        def forward(self, batch):
            raise ArithmeticError("forward")
    torch.nn.Sequential(torch.nn.Linear(2, 2), Net())(torch.ones(2, 2))
    """


def run(folder: Path, script: Path, watched: bool, level: str, workers: int) -> tuple[int, str, str]:
    directory = folder / "run" if watched else None
    if directory is not None:
        directory.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), "2", str(workers)],
        env=environment(directory, DDPDOCTOR_WATCH_LEVEL=level), cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "level", "workers"),
    [
        ("numbers", "normal", 0),
        pytest.param("numbers", "deep", 2, marks=pytest.mark.long),
        pytest.param("dispatched", "deep", 0, marks=pytest.mark.long),
        pytest.param("a batch that is not to be asked", "deep", 0, marks=pytest.mark.long),
        ("a step that raises", "deep", 0),
        pytest.param("a closure that raises", "deep", 0, marks=pytest.mark.long),
        pytest.param("a sampler that raises", "normal", 0, marks=pytest.mark.long),
        ("a sampler that raises", "normal", 1),
    ],
)
def test_what_it_prints_is_the_same_to_the_byte(tmp_path: Path, name: str, level: str, workers: int) -> None:
    script = write(tmp_path, START + SCRIPTS[name])
    plain = run(tmp_path, script, False, level, workers)
    watched = run(tmp_path, script, True, level, workers)
    assert watched == plain
    assert (plain[0] == 0) == ("raises" not in name), plain
    events = [event["event"] for journal in read_journals(tmp_path / "run") for event in journal.events]
    assert "init" in events  # it was watched
    if name == "numbers":
        assert {"step", "epoch", "batch"} <= set(events)
    if name == "a batch that is not to be asked":
        assert "batch" in events
    if name == "dispatched":
        assert "step" in events
        assert "abstained" not in events  # it is looked at, and the mode does not see it
    assert "trouble" not in events


def test_a_forward_that_raises_has_no_frame_of_ours(tmp_path: Path) -> None:
    """In a step that is looked at torch takes its own way for hooks: some frames of torch's are others."""
    script = write(tmp_path, START + FORWARD)
    plain, watched = (run(tmp_path, script, each, "deep", 0) for each in (False, True))
    assert watched[:2] == plain[:2]
    kept = [
        [line for line in each[2].splitlines() if "train.py" in line or "Error" in line]
        for each in (plain, watched)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 4
    assert "ddpdoctor" not in watched[2]
    light = tmp_path / "light"
    light.mkdir()
    assert run(light, script, True, "light", 0) == plain
