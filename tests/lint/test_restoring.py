"""States that some ranks load and others do not: of the wrapped model (NUM001) and of optimizers (NUM006)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

PROGRAM = """\
def is_main():
    return dist.get_rank() == 0
def train(model, optimizer):
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(4)).sum().backward()
        optimizer.step()
class Keeper:
    def __init__(self, path, model, optimizer):
        self.path, self.model, self.optimizer = path, model, optimizer
    def restore(self):
        if not is_main():
            return 0
        state = torch.load(self.path, map_location="cpu")
        {kept}
        return state["step"]
def main(path):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = torch.nn.Linear(4, 2)
    {before}
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    {after}
    train(model, optimizer)
main("last.pt")
"""
LOAD = "torch.load(path, map_location='cpu')"


def make(after: str = "pass", before: str = "pass", kept: str = "pass") -> str:
    """Fill the program in."""
    return PROGRAM.format(before=before, after=after, kept=kept)


MODELS = [
    make(f"if rank == 0:\n        model.load_state_dict({LOAD})  # here"),
    make(f"if is_main():\n        model.module.load_state_dict({LOAD})  # here"),
    make(f"if rank == 0:\n        net.load_state_dict({LOAD})  # here"),
    make(
        f"state = None\n    if rank == 0:\n        state = {LOAD}\n    if state is not None:\n"
        "        model.load_state_dict(state)  # here"
    ),
    make(
        "Keeper(path, model.module, optimizer).restore()",
        kept="self.model.load_state_dict(state['model'])  # here",
    ),
    make(
        "keeper = Keeper(path, model, optimizer)\n    step = torch.tensor(keeper.restore())\n    dist.broadcast(step, 0)",
        kept="self.model.load_state_dict(state['model'])  # here",
    ),
]
OPTIMIZERS = [
    make(f"if rank == 0:\n        optimizer.load_state_dict({LOAD})  # here"),
    make(
        "if state is not None:\n        optimizer.load_state_dict(state['optimizer'])  # here",
        f"state = None\n    if rank == 0:\n        state = {LOAD}\n        net.load_state_dict(state['model'])",
    ),
    make("Keeper(path, net, optimizer).restore()", kept="self.optimizer.load_state_dict(state)  # here"),
    make(
        "parts = {'net': net, 'optimizer': optimizer}\n    first = broadcast_int(restore(parts, path, rank == 0))",
        kept="pass",
    )
    + """
def restore(parts, path, enabled):
    if not enabled or not os.path.exists(path):
        return 0
    state = torch.load(path, map_location="cpu")
    for name, part in parts.items():
        part.load_state_dict(state[name])  # here
    return state["step"]
def broadcast_int(value):
    number = torch.tensor(value)
    dist.broadcast(number, src=0)
    return number.item()
""",
]
RIGHT = [
    make(f"model.load_state_dict({LOAD})\n    optimizer.load_state_dict({LOAD})"),
    make(before=f"if rank == 0:\n        net.load_state_dict({LOAD})"),
    make(
        f"if rank == 0:\n        model.load_state_dict({LOAD})\n"
        "    for p in model.parameters():\n        dist.broadcast(p.data, 0)"
    ),
    make(
        f"state = {LOAD} if rank == 0 else None\n    box = [state]\n    dist.broadcast_object_list(box, 0)\n"
        "    model.load_state_dict(box[0])"
    ),
    make(f"if rank == 0:\n        other = torch.nn.Linear(4, 2)\n        other.load_state_dict({LOAD})"),
    make(
        f"if rank == 0:\n        model.load_state_dict({LOAD})\n    else:\n"
        "        model.load_state_dict(torch.load('other.pt', map_location='cpu'))"
    ),
    PROGRAM.format(before="pass", after="pass", kept="pass").replace(
        "    train(model, optimizer)\nmain",
        f"    train(model, optimizer)\n    if rank == 0:\n        model.module.load_state_dict({LOAD})\n"
        "        print(model.module(torch.ones(4)))\nmain",
    ),
]


@pytest.mark.wrong
@pytest.mark.parametrize("text", MODELS)
def test_wrapped_model_that_some_ranks_load(text: str) -> None:
    assert {each.code for each in lint(text)} == {"NUM001"}
    severity = {each.severity for each in lint(text)}.pop()
    assert severity is not None
    assert_found(text, "NUM001", severity)


@pytest.mark.wrong
@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizer_that_some_ranks_load(text: str) -> None:
    assert_found(text, "NUM006", "warning")


@pytest.mark.right
@pytest.mark.parametrize("text", RIGHT)
def test_state_that_all_ranks_get(text: str) -> None:
    assert {"NUM001", "NUM006"}.isdisjoint(each.code for each in lint(text))


PRESENCE = """\
dist.init_process_group("gloo")
rank = dist.get_rank()
{bound}
{test}
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("bound", "severity"),
    [
        ("log = None\nif rank == 0:\n    log = open('x')", "error"),
        ("log = None\nif rank == 0 and sys.argv:\n    log = open('x')", "warning"),
    ],
)
def test_what_is_none_on_all_ranks_but_one_divides_them(bound: str, severity: str) -> None:
    test = "if log is not None:\n    dist.barrier()  # here"
    assert_found(PRESENCE.format(bound=bound, test=test), "COL002", severity)


@pytest.mark.right
@pytest.mark.parametrize(
    "bound",
    [
        "log = None\nif rank == 0:\n    log = open('x')\nelse:\n    log = open('y')",
        "log = None\nif sys.argv:\n    log = open('x')",
        "log = None\nif rank == 0:\n    log = open('x')\nlog = sys.stdout",
        "log = None\nif rank == 0:\n    log = [1]\nbox = [log]\ndist.broadcast_object_list(box)\nlog = box[0]",
    ],
)
def test_what_all_ranks_have_or_may_have(bound: str) -> None:
    assert lint(PRESENCE.format(bound=bound, test="if log is not None:\n    dist.barrier()")) == []
