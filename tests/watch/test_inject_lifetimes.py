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
