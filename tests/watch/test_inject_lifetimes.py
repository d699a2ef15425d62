"""That nothing of the program is kept alive by what looks at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marks import long
from tests.watch.injecting import python
from tests.watch.test_watch_levels import START


@pytest.mark.parametrize("level", ["normal", *long("light", "deep")])
def test_models_optimizers_tensors_and_loaders_go_when_the_program_lets_them_go(
    tmp_path: Path, level: str
) -> None:
    script = (
        START
        + """
    import gc, weakref

    def make(steps):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(model.parameters())
        data = TensorDataset(torch.randn(4 * steps, 3))
        loader = DataLoader(data, batch_size=4)
        for batch, in loader:
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        told = [model, optimizer, data, loader, batch, loss, *model.parameters(), *model.buffers()]
        return [(type(each).__name__, weakref.ref(each)) for each in told]

    for steps in (1, 2, 3, 4, 5, 9):
        left = make(steps)
        gc.collect()
        print([name for name, reference in left if reference() is not None])
    """
    )
    done = python(tmp_path, script, "2", variables={"DDPDOCTOR_WATCH_LEVEL": level})
    assert done.main().all("step")
    assert done.stdout.split("\n")[:-1] == ["[]"] * 6


@pytest.mark.long
def test_a_step_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        START
        + """
    import gc, weakref

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError("no step")

    model = torch.nn.Linear(3, 3)
    optimizer = Failing(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    try:
        optimizer.step()
    except ArithmeticError:
        pass
    left = [weakref.ref(each) for each in (model, optimizer, model.weight)]
    del model, optimizer
    other = torch.nn.Linear(2, 2)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2, 2)).sum().backward()
    second.step()
    gc.collect()
    print([each() for each in left])
    """
    )
    done = python(tmp_path, script, "2")
    assert done.stdout == "[None, None, None]\n", done.stderr


def test_nothing_is_freed_in_a_forked_child_of_a_program_that_uses_a_gpu(tmp_path: Path) -> None:
    """To free what a GPU uses asks its driver, which ends a forked child: a worker of a loader, for one."""
    start = START.replace('"fake", store=FakeStore()', '"gloo", store=dist.HashStore()')
    script = (
        start
        + """
    import os
    from ddpdoctor_watch.training import backwards, gradients

    owner = os.getpid()

    class OfGPU:
        def __del__(self):
            if os.getpid() != owner:
                os.write(1, b"freed in a child\\n")

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 3))
    for workers in (0, 1, 1):
        for batch, in DataLoader(data, batch_size=4, num_workers=workers):
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
        backwards._numbers._slots = OfGPU()
        numbers = [probe.numbers for watched in gradients._watched for probe in watched.probes.values()]
        for each in numbers:
            each._slots = OfGPU()
        looks = len(numbers)
        torch.mtia._initialized = True  # as where there is such a device
        del numbers, each
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print(looks > 0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
    """
    )
    done = python(tmp_path, script, "1")
    output = done.stdout
    assert output.split("\n")[-2:] == ["True 3", ""], done.stderr
    assert "freed" not in output
