"""Attributes of the model that are asked of the wrapper."""

from __future__ import annotations

import pytest

from ddpdoctor_checks.lint.wrapping.attribute_on_wrapper import OF_WRAPPER
from tests.lint.judging import ask, assert_found, find_marked, lines_of, lint

SCRIPT = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def encode(self, x):
        return self.head(x)

    def forward(self, x):
        return self.encode(x)

dist.init_process_group("gloo")
model = DDP(Net())
{use}
"""


@pytest.mark.wrong
@pytest.mark.parametrize("use", ["print(model.head)", "for x in []:\n    model.encode(x)"])
def test_attribute_of_the_model_is_told_at_its_line(use: str) -> None:
    assert_found(SCRIPT.format(use=f"{use}  # here"), "DDP014", "error")


@pytest.mark.right
@pytest.mark.parametrize(
    "use",
    [
        "print(model.module.head)",
        "model.head = model.module.head\nprint(model.head)",
        "print(model.training, model.parameters())",
        "if hasattr(model, 'head'):\n    print(model.head)",
        "print(model.module.head if isinstance(model, DDP) else model.head)",
        "model = model.module\nprint(model.head)",
    ],
)
def test_attribute_that_is_there_is_right(use: str) -> None:
    assert lint(SCRIPT.format(use=use)) == []


def test_names_of_the_wrapper_are_those_of_torch() -> None:
    from torch.nn.parallel import DistributedDataParallel

    names = {each for each in dir(DistributedDataParallel) if not each.startswith(("_", "register_"))}
    assert names <= OF_WRAPPER


@pytest.mark.right
def test_error_that_is_awaited_is_right() -> None:
    use = "try:\n    x = model.head\nexcept AttributeError:\n    x = model.module.head"
    assert lint(SCRIPT.format(use=use)) == []


@pytest.mark.wrong
@pytest.mark.parametrize("use", ["model.config", "model.generate(x)", "model.save_pretrained(path)"])
def test_what_no_wrapper_has_is_told_of_models_of_other_packages_too(use: str) -> None:
    program = f"""
from transformers import AutoModelForCausalLM

def main(path, x):
    dist.init_process_group("gloo")
    model = DDP(AutoModelForCausalLM.from_pretrained(path))
    {use}  # here
    dist.destroy_process_group()

main(*sys.argv[1:])
"""
    assert_found(program, "DDP014", "error")


@pytest.mark.right
@pytest.mark.parametrize(
    "use",
    [
        "for name in ('config', 'generate'):\n    setattr(model, name, getattr(model.module, name))\nmodel.config",
        "setattr(model, 'config', model.module.config)\nmodel.config",
        "model.module.config",
        "model = Own(model)\nmodel.config",
        "if args.debug:\n    assert not args.distributed and args.batch == 1\n    print(model.config)",
        "if args.engine:\n    model.save_checkpoint('out')",
    ],
)
def test_what_the_wrapper_was_given_is_right(use: str) -> None:
    program = f"""
from transformers import AutoModelForCausalLM
dist.init_process_group("gloo")
model = DDP(AutoModelForCausalLM.from_pretrained("gpt2"))
{use}
"""
    assert not lines_of(lint(program), "DDP014")


PREPARED = """
from accelerate import Accelerator

class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Linear(2, 2)

    def get_value(self, x):
        return self.actor(x)

    def forward(self, x):
        return self.get_value(x)

def main(batches):
    accelerator = Accelerator()
    agent = Agent()
    {before}
    optimizer = torch.optim.Adam(agent.parameters())
    agent, optimizer = accelerator.prepare(agent, optimizer)
    for x in batches:
        {use}  # here
        accelerator.backward(agent(x).sum())
        optimizer.step()

main(load())
"""


@pytest.mark.wrong
@pytest.mark.parametrize("use", ["value = agent.get_value(x)", "print(agent.actor.weight.sum())"])
def test_attribute_of_what_accelerate_prepared(use: str) -> None:
    assert_found(PREPARED.format(before="pass", use=use), "DDP014", "warning")


OTHER = """
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {part}
"""


@pytest.mark.parametrize(
    ("made", "part", "wrapped"),
    [
        ("torch.ones(2)", "pass", False),
        ("Part()", "self.register_buffer('window', torch.hann_window(8))", False),
        ("Part()", "self.scale = torch.nn.Parameter(torch.ones(2))", True),
        ("Part()", "self.layer = torch.nn.Linear(2, 2)", True),
        ("load('a.pt')", "pass", True),
    ],
)
def test_accelerate_wraps_no_model_without_parameters(made: str, part: str, wrapped: bool) -> None:
    program = PREPARED.format(before="pass", use="value = agent.get_value(x)")
    program = OTHER.format(part=part) + program.replace("torch.nn.Linear(2, 2)", made)
    assert bool(lines_of(lint(program), "DDP014")) is wrapped


@pytest.mark.right
@pytest.mark.parametrize(
    ("before", "use"),
    [
        ("pass", "value = accelerator.unwrap_model(agent).get_value(x)"),
        ("pass", "value = agent.module.get_value(x) if hasattr(agent, 'module') else agent.get_value(x)"),
        ("pass", "print(agent.training)"),
        ("print(agent.actor)", "agent(x)"),
        ("agent.requires_grad_(False)", "value = agent.get_value(x)"),
        ("for p in agent.parameters():\n        p.requires_grad = False", "value = agent.get_value(x)"),
    ],
)
def test_what_accelerate_does_not_wrap_or_was_unwrapped_is_right(before: str, use: str) -> None:
    assert lint(PREPARED.format(before=before, use=use)) == []


@pytest.mark.wrong
def test_attribute_of_a_diffusion_model_that_accelerate_prepared() -> None:
    program = """
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel

def main(path, batches):
    accelerator = Accelerator()
    unet = UNet2DConditionModel.from_pretrained(path, subfolder="unet")
    schedule = DDPMScheduler.from_pretrained(path, subfolder="scheduler")
    optimizer = torch.optim.AdamW(unet.parameters())
    unet, optimizer = accelerator.prepare(unet, optimizer)
    for x in batches:
        channels = unet.config.in_channels  # here
        steps = schedule.config.num_train_timesteps
        accelerator.backward(unet(x, steps, channels).sample.mean())
        optimizer.step()

main(sys.argv[1], load())
"""
    assert_found(program, "DDP014", "warning")


@pytest.mark.right
def test_models_of_fabric_hand_requests_on() -> None:
    program = PREPARED.replace("from accelerate import Accelerator", "from lightning import Fabric")
    program = program.replace("Accelerator()", "Fabric()").replace(".prepare(", ".setup(")
    assert lint(program.format(before="pass", use="agent.get_value(x)")) == []


@pytest.mark.right
def test_program_that_speaks_of_deepspeed_is_asked() -> None:
    program = PREPARED.format(before="print('runs with DeepSpeed')", use="agent.get_value(x)")
    assert lint(program) == []
    assert lines_of(ask(program), "DDP014") == find_marked(program)


SETTING = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def checkpoint_layers(self):
        self.on = True

    def forward(self, x):
        return self.head(x)

def main(args):
    dist.init_process_group("gloo")
    model = Net()
    if {wrapped}:
        model = DDP(model)
        {inside}
    {between}
    model(load()).sum().backward()
    dist.destroy_process_group()

main(parse())
"""
ASKED = "model.checkpoint_layers()  # here"
BELOW = f"if args.{{}}:\n        {ASKED}"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("wrapped", "inside", "between"),
    [
        ("not args.fsdp", "pass", BELOW.format("checkpointing")),
        ("args.ddp_backend", "pass", BELOW.format("checkpointing")),
        ("args.train", "pass", ASKED),
        ("args.ddp_backend", ASKED, "pass"),
    ],
)
def test_wrapper_of_one_setting_comes_to_a_line_without_it(wrapped: str, inside: str, between: str) -> None:
    assert_found(SETTING.format(wrapped=wrapped, inside=inside, between=between), "DDP014", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    ("wrapped", "inside", "between"),
    [
        ("not args.fsdp", "pass", BELOW.format("fsdp")),
        ("args.ddp_backend", "pass", BELOW.format("no_ddp")),
        ("args.train", "pass", BELOW.format("evaluate")),
        ("args.ddp_backend", "return fit(model)", ASKED),
        ("args.ddp_backend", "pass", f"if args.ddp_backend:\n        return fit(model)\n    {ASKED}"),
        ("args.ddp_backend", "pass", f"if args.ddp_backend:\n        model = model.module\n    {ASKED}"),
        ("args.ddp_backend", "model = model.module", ASKED),
    ],
)
def test_wrapper_that_does_not_come_to_a_line_is_right(wrapped: str, inside: str, between: str) -> None:
    program = SETTING.format(wrapped=wrapped, inside=inside, between=between)
    assert not lines_of(lint(program), "DDP014")


KEEPER = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def restore(self):
        self.on = True

    def forward(self, x):
        return self.head(x)

class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = Net()
        {first}
        {wrap}
        {then}

    def fit(self):
        self.prepare()

    def prepare(self):
        {use}  # here

dist.init_process_group("gloo")
trainer = Trainer(parse())
trainer.fit()
dist.destroy_process_group()
"""
USE = "self.model.restore()"
SOME = "if args.multi_gpu:\n            self.model = DDP(self.model)"


@pytest.mark.wrong
@pytest.mark.parametrize(("wrap", "severity"), [("self.model = DDP(self.model)", "error"), (SOME, "warning")])
@pytest.mark.parametrize("then", ["pass", "self.prepare()"])
def test_method_that_runs_behind_the_wrap(wrap: str, severity: str, then: str) -> None:
    assert_found(KEEPER.format(first="pass", wrap=wrap, then=then, use=USE), "DDP014", severity)


@pytest.mark.right
@pytest.mark.parametrize(
    ("first", "wrap", "use"),
    [
        ("self.prepare()", "self.model = DDP(self.model)", USE),
        ("self.fit()", "self.model = DDP(self.model)", USE),
        ("self.prepare()", SOME, USE),
        ("pass", SOME, f"if not self.args.multi_gpu:\n            {USE}"),
        ("pass", f"{SOME}\n            self.model = self.model.module", USE),
    ],
)
def test_method_that_may_run_before_the_wrap_is_right(first: str, wrap: str, use: str) -> None:
    assert not lines_of(lint(KEEPER.format(first=first, wrap=wrap, then="pass", use=use)), "DDP014")


GIVEN = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)

def inspect(model, plain=False):
    {use}  # here

dist.init_process_group("gloo")
inspect(Net())
inspect(DDP(Net()))
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_wrapper_that_one_caller_gives() -> None:
    assert_found(GIVEN.format(use="print(model.head)"), "DDP014", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    "use", ["if plain:\n        print(model.head)", "print(getattr(model, 'module', model).head)"]
)
def test_function_that_may_know_what_it_was_given_is_right(use: str) -> None:
    assert not lines_of(lint(GIVEN.format(use=use)), "DDP014")


OTHER_RANKS = """
from accelerate import Accelerator

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(2, 2)

    def forward(self, x):
        return self.table(x)

def main():
    accelerator = Accelerator()
    net = accelerator.prepare(Net())
    accelerator.backward(net(load()).sum())
    if accelerator.is_main_process:
        net = accelerator.unwrap_model(net)
    {use}

main()
"""


@pytest.mark.wrong
def test_what_only_the_main_process_unwraps() -> None:
    program = OTHER_RANKS.format(use="print(net.table)  # here")
    assert_found(program, "DDP014", "warning")


@pytest.mark.right
def test_what_only_the_main_process_unwraps_and_uses_is_right() -> None:
    program = OTHER_RANKS.format(use="if accelerator.is_main_process:\n        print(net.table)")
    assert lint(program) == []
