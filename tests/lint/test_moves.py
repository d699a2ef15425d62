"""Whether the model that is wrapped with ``device_ids`` has been moved from the CPU."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, lint

PROGRAM = """
import timm, studio
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
def build(device=None):
    net = Net()
    {inside}
    return net
def touch(module, device):
    {touched}
def main(args, batches):
    device = torch.device("cuda", args.local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = {made}
    {before}
    bare = model
    model = DDP(model, device_ids=[args.local_rank])
    for x in batches:
        model(x.to(device)).sum().backward()
    {after}
    dist.destroy_process_group()
"""


def program(made: str = "Net()", before: str = "pass", **others: str) -> str:
    """Fill the frame in."""
    parts = {"inside": "pass", "touched": "print(module, device)", "after": "pass", **others}
    return PROGRAM.format(made=made, before=before, **parts)


def stays(text: str) -> bool:
    """Whether it is told that the model stays on the CPU."""
    return any(each.code == "DDP016" and "on the CPU" in each.message for each in lint(text))


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        program(),
        program("build()"),
        program('timm.create_model("levit")'),
        program(before="model.load_state_dict(torch.load('a.pt', map_location='cpu'))"),
        program(before="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
        program(before="touch(model, device)"),
        program(after="bare.to('cpu')"),
        program(before="model.to(memory_format=torch.channels_last)"),
        program(before="model = model.to(torch.bfloat16)"),
        program("globals()[args.arch]()"),
        program("eval(args.arch)()"),
        program("torchvision.models.__dict__[args.arch]()"),
        program(before="model, _ = amp.initialize(model, opt)").replace(
            "import timm", "from apex import amp\nimport timm"
        ),
    ],
)
def test_model_that_nothing_moves(text: str) -> None:
    assert stays(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        program(before="model.to(device)"),
        program(before="model = model.cuda()"),
        program("Net().cuda()"),
        program("build()", inside="net.cuda()"),
        program("build(device)", inside="net = net.to(device)"),
        program(before="touch(model, device)", touched="module.to(device)"),
        program(before="other = model\n    other.cuda()"),
        program(before="torch.set_default_device(device)"),
        program(before="model = studio.prepare(model)"),
        program(before="model.to(device, memory_format=torch.channels_last)"),
    ],
)
def test_model_that_is_moved(text: str) -> None:
    assert not stays(text)
    assert not [each for each in ask(text) if each.code == "DDP016"]


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        program("studio.build()"),
        program(before="studio.show(model)"),
        program("studio.models[args.arch]()"),  # a package that was not read
        program("eval(args.arch)()", inside="net.cuda()"),  # which may be the one that is chosen
        program("eval(args.arch)()").replace("Linear(8, 1)", "Linear(8, 1, device=place)"),
    ],
)
def test_what_may_move_it_is_asked_about(text: str) -> None:
    assert not stays(text)
    assert ["DDP016" for each in ask(text) if each.code == "DDP016"] == ["DDP016"]


@pytest.mark.right
def test_a_model_that_each_caller_has_moved() -> None:
    wrap = "def wrap(model, rank):\n    return DDP(model, device_ids=[rank])\n"
    use = "def main(rank):\n    net = torch.nn.Linear(8, 1){}\n    return wrap(net, rank)\n"
    assert not stays(wrap + use.format(".cuda(rank)"))
    assert stays(wrap + use.format("") + "print(torch.device('cuda'))\n")


@pytest.mark.right
def test_a_model_that_the_caller_of_a_caller_has_moved() -> None:
    wrap = "def wrap(model, rank):\n    return DDP(model, device_ids=[rank])\n"
    solver = "class Solver:\n    def __init__(self, model, rank):\n        self.model = wrap(model, rank)\n"
    use = (
        "def main(rank):\n    net = torch.nn.Linear(8, 1)\n    if torch.cuda.is_available():\n        net{}\n"
        "    return Solver(net, rank)\n"
    )
    assert not stays(wrap + solver + use.format(".cuda()"))
    kept = wrap + solver + use.format(".train()")
    assert not stays(kept)  # the class that keeps it may move it
    assert [each.code for each in ask(kept)] == ["DDP016"]


BRANCHED = """
import unread
# whoever comes after the line `torch.cuda.set_device(rank)` has a device of its own
def main(args):
    unread.configure(args)
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    {set}
    model = torch.nn.Linear(2, 2)
    if args.half:
        model = model.half()
        {one}
    else:
        {other}
    model = DDP(model)
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.wrong
def test_model_that_each_side_of_a_test_moves_to_the_first_gpu() -> None:
    text = BRANCHED.format(set="pass", one="model.cuda()", other="model.cuda()")
    (found,) = [each for each in (*ask(text), *lint(text)) if each.code == "BKD009"]
    assert (found.code, found.severity) == ("BKD009", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    ("made", "one", "other", "asked"),
    [
        ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))", "model.cuda()", "model.cuda()", False),
        ("pass", "model.cuda()", "model.cuda(args.gpu)", True),
        ("pass", "model.cuda(args.gpu)", "model.cuda(args.gpu)", True),
    ],
)
def test_model_that_a_side_moves_to_a_gpu_of_its_own(made: str, one: str, other: str, asked: bool) -> None:
    text = BRANCHED.format(set=made, one=one, other=other)
    assert not [each for each in lint(text) if each.code == "BKD009"]
    assert [each.code for each in ask(text) if each.code == "BKD009"] == ["BKD009"] * asked
