"""What a variable holds where it stands: behind tests for None, in loops, in functions that are handed over."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

UNFROZEN = """
def main(config):
    dist.init_process_group("gloo")
    judge = torch.nn.Linear(2, 1) if config.judged else None
    {before}
    if {test}:
        for each in list(judge.parameters())[:1]:
            each.requires_grad = False
        judge = DDP(judge)
    for epoch in range(9):
        if epoch == 2:
            for each in judge.parameters():
                each.requires_grad = True  # here
        for x in batches():
            {trained}
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
main(read())
"""


@pytest.mark.parametrize("test", ["judge is not None", "judge", "not judge is None"])
@pytest.mark.parametrize(
    "trained",
    [
        "loss = judge(x).sum() if judge is not None else 0",
        "loss = diffusion.losses(judge, x)['loss'].mean()",
    ],
)
@pytest.mark.wrong
def test_wrapper_behind_a_test_for_none(test: str, trained: str) -> None:
    program = UNFROZEN.format(before="pass", test=test, trained=trained)
    assert lines_of(lint(program), "DDP006") == find_marked(program)


@pytest.mark.parametrize(
    ("before", "trained"),
    [
        ("judge = torch.nn.Linear(2, 1)", "loss = other(x).sum()"),
        ("unused = 1", "loss = step(x)"),
    ],
)
@pytest.mark.right
def test_model_that_nothing_trains_after_the_wrap(before: str, trained: str) -> None:
    assert not lines_of(lint(UNFROZEN.format(before=before, test="judge", trained=trained)), "DDP006")


@pytest.mark.parametrize("held", ["list(judge.parameters())", "tuple(judge.parameters())[:3]"])
@pytest.mark.wrong
def test_parameters_that_a_variable_holds_are_trained_again(held: str) -> None:
    program = UNFROZEN.format(before="pass", test="judge", trained="loss = judge(x).sum()")
    program = program.replace(
        "for each in judge.parameters():", f"rest = {held}\n            for each in rest:"
    )
    assert lines_of(lint(program), "DDP006") == find_marked(program)


@pytest.mark.right
def test_parameters_of_a_variable_that_holds_several_things_are_not_known() -> None:
    program = UNFROZEN.format(before="rest = []", test="judge", trained="loss = judge(x).sum()")
    held = "for each in judge.parameters():"
    several = (
        "if config.some:\n                rest = list(judge.parameters())\n            for each in rest:"
    )
    assert not lines_of(lint(program.replace(held, several)), "DDP006")


HELPER = """
class Trainer:
    def __init__(self, train, valid):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DDP(torch.nn.Linear(4, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.sampler = DistributedSampler(train)
        self.loader = DataLoader(train, 8, sampler=self.sampler)
        self.held_out = DataLoader({held_out}, 8)
    def loss(self, net, x, y):
        return torch.nn.functional.cross_entropy(net(x), y)
    def validate(self):
        total, count = 0.0, 0
        for x, y in self.held_out:
            total += self.loss(self.model.module, x, y).item() * x.size(0)
            count += x.size(0)
        {joined}
        return total / count
    def fit(self):
        for epoch in range(9):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = self.loss(self.model, x, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if self.validate_better():
                break
    def validate_better(self):
        val = self.validate()
        return val > 1.0  # here
dist.init_process_group("gloo")
Trainer(read(), read()).fit()
"""
SHARE = "Subset(valid, range(self.rank, len(valid), self.world))"
IMPORTS = "from torch.utils.data import DataLoader, DistributedSampler, Subset\n"


@pytest.mark.wrong
def test_a_model_given_to_a_method_that_also_gets_the_module_below_its_wrapper() -> None:
    """The loop trains a wrapped model by way of it, and each rank measures its own share of the rest."""
    program = IMPORTS + HELPER.format(held_out=SHARE, joined="pass")
    assert lines_of(lint(program), "NUM005") == find_marked(program)


@pytest.mark.parametrize(
    ("held_out", "joined"), [("valid", "pass"), (SHARE, "total, count = reduce_sums(total, count)")]
)
@pytest.mark.right
def test_a_result_that_all_ranks_have_or_may_have(held_out: str, joined: str) -> None:
    assert not lines_of(lint(IMPORTS + HELPER.format(held_out=held_out, joined=joined)), "NUM005")


BRANCHES = """
def train(model, batches, optimizer, mixed):
    for step, x in enumerate(batches):
        if {test}:
            loss = model.module(x).sum()  # here
        else:
            loss = model(x).sum()
        loss.backward()
        {update}optimizer.step()
        optimizer.zero_grad()

def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    train(model, load(), torch.optim.SGD(model.parameters(), 0.1), parse().mixed)
    dist.destroy_process_group()
main()
"""


@pytest.mark.parametrize("test", ["mixed", "not mixed"])
@pytest.mark.wrong
def test_wrapper_on_the_other_side_of_a_setting(test: str) -> None:
    program = BRANCHES.format(test=test, update="")
    assert lines_of(lint(program), "DDP005") == find_marked(program)


@pytest.mark.parametrize("test", ["step % 4 != 3", "not x.is_last"])
@pytest.mark.right
def test_wrapper_in_those_steps_that_update(test: str) -> None:
    program = BRANCHES.format(test=test, update=f"if {test}:\n            continue\n        ")
    assert not lines_of(lint(program), "DDP005")


HANDED = """
def timed(work):
    began = time.time()
    return work(), time.time() - began

def main():
    dist.init_process_group("gloo")
    net = torch.nn.Linear(2, 2)
    for each in list(net.parameters())[:1]:
        each.requires_grad = False
    net = {wrap}
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(9):
        if epoch == 2:
            for each in net.parameters():
                each.requires_grad = True  # here
        for x in batches():
            def step():
                net(x).sum().backward()
                optimizer.step()
            timed(step)
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_step_in_a_function_that_is_handed_over() -> None:
    program = HANDED.format(wrap="DDP(net)")
    assert lines_of(lint(program), "DDP006") == find_marked(program)


@pytest.mark.right
def test_step_of_a_plain_model_in_a_function_that_is_handed_over() -> None:
    assert not lines_of(lint(HANDED.format(wrap="net")), "DDP006")


STOPS = """
def main():
    args = parser.parse_args()
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1 or args.spawned
    if args.distributed:
        dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 2)
    {wrap}
    report = check(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(9):
        for x in batches():
            report = model(x)
            loss = 0
            loss = loss + criterion(report)
            optimizer.zero_grad()
            {leave}
            loss.backward()  # here
            optimizer.step()
            if args.checked:
                report = check(model)
    dist.destroy_process_group()
main()
"""
WRAP = "if args.distributed:\n        model = DDP(model)\n    else:\n        model = torch.nn.DataParallel(model)"
OWN = "class Local(torch.nn.Module):\n        pass\n    if args.distributed:\n        model = DDP(model)\n    else:\n        model = Local(model)"


@pytest.mark.parametrize("wrap", [WRAP, OWN, "model = DDP(model)"])
@pytest.mark.parametrize(
    "leave",
    ["if torch.isnan(loss):\n                continue", "if loss.item() < 0.01:\n                break"],
)
@pytest.mark.wrong
def test_own_loss_decides_in_a_program_that_uses_its_names_again(wrap: str, leave: str) -> None:
    program = STOPS.format(wrap=wrap, leave=leave)
    assert lines_of(lint(program), "COL002") == find_marked(program)


@pytest.mark.parametrize(
    ("wrap", "leave"),
    [
        ("pass", "if torch.isnan(loss):\n                continue"),  # no wrapper
        (WRAP, "if torch.isnan(loss):\n                sys.exit(-1)"),  # the launcher ends the others
        (WRAP, "dist.all_reduce(loss)\n            if torch.isnan(loss):\n                continue"),
        (WRAP, "report = check(model)\n            if report.item() < 0.01:\n                break"),
    ],
)
@pytest.mark.right
def test_decision_that_is_not_of_one_rank(wrap: str, leave: str) -> None:
    assert not lines_of(lint(STOPS.format(wrap=wrap, leave=leave)), "COL002")


@pytest.mark.right
def test_model_that_one_caller_gives_unwrapped_on_one_rank() -> None:
    program = """
def fit(model):
    for x in batches():
        model(x).sum().backward()

dist.init_process_group("gloo")
fit(DDP(torch.nn.Linear(2, 2)))
if dist.get_rank() == 0:
    fit(torch.nn.Linear(2, 2))
dist.destroy_process_group()
"""
    assert not lines_of(lint(program), "COL002")


JOINED = """
def start():
    if {test}:
        {leave}
    device = int(os.environ["RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    {join}
    return dist.get_rank()  # here

if __name__ == "__main__":
    {first}
    start()
"""


@pytest.mark.parametrize("test", ["not torch.cuda.is_available()", "'RANK' not in os.environ"])
@pytest.mark.parametrize("first", ["pass", "trainer.evaluate(data)"])
@pytest.mark.wrong
def test_group_that_nothing_makes_behind_a_test_for_a_device(test: str, first: str) -> None:
    program = JOINED.format(test=test, leave="return None", join="pass", first=first)
    assert lines_of(lint(program), "ENV019") == find_marked(program)


@pytest.mark.parametrize("option", ["args.local_rank != -1", "args.local_rank >= 0"])
@pytest.mark.wrong
def test_group_that_nothing_makes_where_the_launcher_gives_a_rank(option: str) -> None:
    program = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
if __name__ == "__main__":
    args = parser.parse_args()
    if {option}:
        size = dist.get_world_size()  # here
"""
    assert lines_of(lint(program), "ENV019") == find_marked(program)


@pytest.mark.parametrize("owner", ["", "self."])
@pytest.mark.right
def test_wrapper_of_a_class_that_is_made_without_a_rank(owner: str) -> None:
    program = f"""
class Model:
    def __init__(self, local_rank=-1):
        self.local_rank = local_rank
        self.net = torch.nn.Linear(2, 2)
        if {owner}local_rank != -1:
            self.net = DDP(self.net, device_ids=[local_rank])

if __name__ == "__main__":
    model = Model()
    model.net.eval()
"""
    assert not lines_of(lint(program), "ENV019")


@pytest.mark.parametrize(
    ("test", "join", "first"),
    [
        ("not torch.cuda.is_available()", "dist.init_process_group('nccl')", "pass"),
        ("not torch.cuda.is_available()", "pass", "trainer = engines.build_trainer(config)"),
        ("not torch.cuda.is_available()", "pass", "engines.launch(config)"),
        ("not dist.is_available()", "pass", "pass"),
    ],
)
@pytest.mark.right
def test_group_that_something_may_make(test: str, join: str, first: str) -> None:
    program = JOINED.format(test=test, leave="return None", join=join, first=first)
    assert not lines_of(lint(program), "ENV019")
