"""What is decided in a function of the files: what it freezes, saves and seeds with what it is given."""

from __future__ import annotations

import pytest

from tests.lint.judging import HEAD, find_marked, judge, lines_of, lint, read

NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 2)
{made}
    def forward(self, x):
        return self.head(self.body(x))
"""
MODEL = (
    NET
    + """\
def switch(module, flag):
    for p in module.parameters():
        p.requires_grad = flag
def thaw(model):
    net = model.module
    for p in net.body.parameters():
        p.requires_grad_(True)
def choose(module, flag):
    if flag:
        for p in module.parameters():
            p.requires_grad = flag
def train(model, batches):
    for x in batches:
        model(x).sum().backward()
dist.init_process_group("gloo")
net = Net()
{before}
model = DDP(net)
{after}
train(model, [])
dist.destroy_process_group()
"""
)
FROZEN = "        for p in self.body.parameters():\n            p.requires_grad_(False)"


@pytest.mark.parametrize(
    ("made", "before", "after", "found"),
    [
        ("", "switch(net.body, False)", "switch(net.body, True)", True),
        ("", "switch(net.body, False)", "thaw(model)", True),
        (FROZEN, "", "thaw(model)", True),
        ("", "switch(net.body, False)", "model.module.body.requires_grad_(True)", True),
        ("", "net.body.requires_grad_(False)", "switch(net, flag=True)", True),
        ("", "", "switch(net.body, True)", False),
        ("", "switch(net.body, False)", "switch(net.head, True)", False),
        ("", "switch(net.body, False)", "switch(net.body, args.train)", False),
        ("", "switch(net.body, False)", "choose(net.body, True)", False),
        ("", "switch(net.body, False)\nswitch(net.body, True)", "switch(net.body, True)", False),
        ("", "switch(net.body, True)", "switch(net.body, False)", False),
    ],
)
def test_parts_that_a_function_freezes_and_trains(made: str, before: str, after: str, *, found: bool) -> None:
    text = MODEL.format(made=made, before=before, after=f"{after}  # HERE")
    lines = [each.where[0].line for each in lint(text) if each.code == "DDP006"]
    marked = [number for number, line in enumerate((HEAD + text).splitlines(), 1) if "# HERE" in line]
    assert lines == (marked if found else [])


SAVE = """
def save(*args, **kwargs):
    {guard}torch.save(*args, **kwargs)  # HERE
def main():
    dist.init_process_group("gloo")
    save({{"a": 1}}, {path})
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("guard", "path", "found"),
    [
        ("", "'model.pt'", True),
        ("", "os.path.join(args.out, 'model.pt')", True),
        ("", "f'model-{dist.get_rank()}.pt'", False),
        ("if dist.get_rank() == 0: ", "'model.pt'", False),
    ],
)
def test_path_that_is_handed_on(guard: str, path: str, *, found: bool) -> None:
    text = SAVE.format(guard=guard, path=path)
    assert [each.code for each in lint(text)] == (["CKP001"] if found else [])
    assert [
        each.code for each in lint(text.replace("save(*args, **kwargs):", "save(state, *args, **kwargs):"))
    ] == []


SPLIT = """
import random
from torch.utils.data import DataLoader, TensorDataset, random_split
def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed)
def main():
    dist.init_process_group("gloo")
    seed_all({seed})
    data = TensorDataset(load())
    train, held = random_split(data, [500, 100])  # HERE
    model = DDP(torch.nn.Linear(8, 2))
    sampler = DistributedSampler(train)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x in DataLoader(train, sampler=sampler):
            model(x).sum().backward()
    dist.destroy_process_group()
main()
"""


@pytest.mark.parametrize(
    ("seed", "found"), [("42 + dist.get_rank()", True), ("42", False), ("args.seed", False)]
)
def test_seed_that_is_handed_on(seed: str, *, found: bool) -> None:
    codes = {each.code for each in lint(SPLIT.format(seed=seed))}
    assert ("DAT004" in codes) is found


METERS = """
from collections import defaultdict
class Meter:
    def sync(self):
        dist.barrier()
class Logger:
    def __init__(self):
        self.meters = {meters}
    def sync(self):
        for {target} in self.meters{view}:
            meter.sync()
dist.init_process_group("gloo")
logger = Logger()
if dist.get_rank() == 0:
    logger.sync()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("meters", "target", "view", "found"),
    [
        ("defaultdict(Meter)", "meter", ".values()", True),
        ("defaultdict(Meter)", "name, meter", ".items()", True),
        ("[Meter(), Meter()]", "meter", "", True),
        ("{'a': Meter()}", "meter", ".values()", True),
        ("[Meter() for _ in range(3)]", "meter", "", True),
        ("defaultdict(Meter)", "meter", "", False),
        ("defaultdict(Meter)", "meter, name", ".items()", False),
        ("[Meter(), args.meter]", "meter", "", False),
        ("defaultdict(list)", "meter", ".values()", False),
    ],
)
def test_elements_of_a_container_are_of_its_class(
    meters: str, target: str, view: str, *, found: bool
) -> None:
    text = METERS.format(meters=meters, target=target, view=view)
    assert ("COL002" in {each.code for each in lint(text)}) is found


UPDATED = """
from torch.utils.data import DataLoader, TensorDataset
class Model:
    def __init__(self):
        self.net = DDP(torch.nn.Linear(2, 2))
    def update(self, x, training):
        loss = self.net(x).sum()
        if training:
            loss.backward()
def main():
    dist.init_process_group("gloo")
    model = Model()
    held = DataLoader(TensorDataset(load()), batch_size=2)
    {manager}
        for x in held:
            model.update(x, {training})
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("manager", "found"), [("if True:", True), ("with torch.no_grad():", False)])
def test_loop_without_gradients_does_not_train(manager: str, *, found: bool) -> None:
    text = UPDATED.format(manager=manager, training=found)
    inside = text.replace(
        "for x in held:\n            model",
        "for x in held:\n          with torch.no_grad():\n            model",
    )
    assert ("DAT001" in {each.code for each in lint(text if found else inside)}) is found


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("torch.device('cpu')", True),
        ("'cpu'", True),
        ("torch.device('cuda', 0)", False),
        ("args.device", False),
    ],
)
def test_cpu_among_device_ids(device: str, *, found: bool) -> None:
    text = f"{HEAD}dist.init_process_group('gloo')\ndevice = {device}\nmodel = DDP(torch.nn.Linear(2, 2).to(device), device_ids=[device])\ndist.destroy_process_group()\n"
    assert ([each.code for each in judge(read({"train.py": text}))] == ["DDP016"]) is found


BUILT = (
    NET.replace("{made}\n", "")
    + """\
def swap(model):
    net = model.module if isinstance(model, DDP) else model
    net.head = torch.nn.Linear(2, 5)
    return model
def build():
    net = Net()
    {frozen}
    {early}
    ddp = DDP(net)
    {late}
    return net, ddp
def main():
    dist.init_process_group("gloo")
    net, ddp = build()
    {then}
    for x in batches:
        loss = {model}(x).sum()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
main()
"""
)

OPENED = "for name in names:\n        getattr(ddp.module, name).requires_grad_(True)"


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("DDP005", {"model": "net"}),
        ("DDP006", {"late": "ddp.module.head = torch.nn.Linear(2, 5)"}),
        ("DDP006", {"then": "ddp.module.head = torch.nn.Linear(2, 5)"}),
        ("DDP006", {"then": "net.head = torch.nn.Linear(2, 5)"}),
        (
            "DDP006",
            {"frozen": "net.body.requires_grad_(False)", "then": "ddp.module.body.requires_grad_(True)"},
        ),
        ("DDP006", {"then": "ddp = swap(ddp)"}),
        ("DDP006", {"frozen": "net.requires_grad_(False)", "then": OPENED}),
        (None, {"frozen": "net.body.requires_grad_(False)", "then": OPENED}),
        (None, {}),
        (None, {"early": "swap(net)"}),
        (None, {"then": "swap(Net())"}),
        (None, {"then": OPENED}),
        (None, {"early": "net.head = torch.nn.Linear(2, 5)"}),
        (None, {"then": "other = build()[0]\n    other.eval()\n    other(x)"}),
        (None, {"frozen": "net.body.requires_grad_(False)", "then": "ddp.module.head.requires_grad_(True)"}),
        ("DDP006", {"then": "net.body.requires_grad_(False)"}),
        (None, {"late": "net = Net()", "model": "ddp"}),
    ],
)
def test_a_model_that_a_function_builds_and_wraps_is_known_to_its_caller(
    code: str | None, parts: dict[str, str]
) -> None:
    made = {"frozen": "pass", "early": "pass", "late": "pass", "then": "pass", "model": "ddp", **parts}
    found = [each.code for each in lint(BUILT.format(**made)) if each.code in ("DDP005", "DDP006")]
    assert found == ([code] if code is not None else [])


REWRAPS = """
class Tuner:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.net.requires_grad_(False)
        self.wrap()
    def wrap(self):
        self.model = DDP(self.net)
    def thaw(self):
        self.net.requires_grad_(True)
        {after}
    def again(self):
        {again}
    def fit(self, loader):
        for epoch in range(3):
            if epoch == 1:
                self.thaw()
                self.again()
            for x in loader:
                self.model(x).sum().backward()
def main():
    dist.init_process_group("gloo")
    Tuner().fit([])
    dist.destroy_process_group()
main()
"""


@pytest.mark.parametrize(("part", "found"), [("after", []), ("again", []), (None, ["DDP006"])])
def test_what_is_wrapped_once_more_after_the_change(part: str | None, found: list[str]) -> None:
    made = {"after": "pass", "again": "pass"}
    text = REWRAPS.format(**made | ({part: "self.wrap()"} if part is not None else {}))
    assert [each.code for each in lint(text) if each.code == "DDP006"] == found


KEEPER = """
class Keeper:
    def __init__(self, path, enabled=True):
        self.path, self.enabled = path, enabled
    def agree(self):
        {leave}
        dist.barrier()
def report(value, first):
    if first:
        print(value)
        {inside}
dist.init_process_group("gloo")
rank = dist.get_rank()
{made}
keeper.agree()
report(1, {first})
dist.destroy_process_group()
"""
ENABLED = "keeper = Keeper('a', enabled=rank == 0)"


@pytest.mark.parametrize(
    ("leave", "inside", "made", "first", "line"),
    [
        ("if not self.enabled:\n            return", "", ENABLED, "rank == 0", "if not self.enabled"),
        ("pass", "dist.barrier()", ENABLED, "rank == 0", "dist.barrier()"),
        ("pass", "dist.barrier()", ENABLED, "rank == 0 or dist.get_world_size() == 1", "dist.barrier()"),
        (
            "if not self.enabled:\n            return",
            "",
            "keeper = Keeper('a', enabled=args.resume)",
            "True",
            "",
        ),
        ("if not self.enabled:\n            return", "", "keeper = Keeper('a')", "True", ""),
        ("if not self.enabled:\n            return", "", f"{ENABLED}\nother = Keeper('b', True)", "True", ""),
        ("if not self.enabled:\n            print('no')", "", ENABLED, "True", ""),
        ("pass", "dist.barrier()", ENABLED, "args.verbose", ""),
        ("pass", "dist.barrier()", f"{ENABLED}\nreport(2, rank != 0)", "rank == 0", ""),
    ],
)
def test_rank_test_that_is_handed_on(leave: str, inside: str, made: str, first: str, line: str) -> None:
    source = HEAD + KEEPER.format(leave=leave, inside=inside or "pass", made=made, first=first)
    found = [each for each in lint(source, head="") if each.code in ("COL002", "COL003")]
    lines = source.splitlines()
    assert [any(line in lines[place.line - 1] for place in each.where) for each in found] == [True] * bool(
        line
    )


STATE = """\
class State:
    def __init__(self, number, several=True):
        self.number = number
        self.first = number == 0
        self.quiet = several and number != 0
dist.init_process_group("gloo")
state = State({given})
if {test}:
    dist.barrier()  # here
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "test",
    ["state.first", "not state.first", "not state.quiet", "state.number == 0", "state.number > 1"],
)
def test_object_that_keeps_whether_it_is_on_rank_0(test: str) -> None:
    text = STATE.format(given="dist.get_rank()", test=test)
    assert lines_of(lint(text), "COL002") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    ("given", "test"),
    [("3", "state.first"), ("dist.get_world_size()", "state.first"), ("dist.get_rank()", "state.other")],
)
def test_object_that_keeps_what_is_no_rank(given: str, test: str) -> None:
    assert lines_of(lint(STATE.format(given=given, test=test)), "COL002") == set()
