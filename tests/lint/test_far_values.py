"""Values that come from afar: models out of tables, losses of the wrapped model, what a checkpoint holds; and devices."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, lint

ACCELERATED = """
from accelerate import Accelerator
from nets import MODELS
import diffusion
accelerator = Accelerator()
model = MODELS[args.name]()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    parts = {output}
    loss = {loss}
    if {test}:
        continue
    accelerator.backward(loss)
    optimizer.step()
"""
NETS = """
class Net(torch.nn.Module):
    pass
def small():
    return Net()
MODELS = {"net": Net, "small": small}
"""


def accelerated(test: str, output: str = "model(x)", loss: str = 'parts["loss"].mean()') -> list[str]:
    """Return the codes of what is found in a training with Accelerate."""
    return [each.code for each in lint(ACCELERATED.format(test=test, output=output, loss=loss), nets=NETS)]


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("test", "output", "loss"),
    [
        ("torch.isnan(loss)", "model(x)", 'parts["loss"].mean()'),
        ("loss.item() > 9", "diffusion.training_losses(model, x)", 'parts["loss"].mean()'),
        ("torch.isnan(loss)", "model(x)", "sum(parts[each] for each in weights)"),
    ],
)
def test_a_rank_that_skips_a_backward_of_accelerate(test: str, output: str, loss: str) -> None:
    assert accelerated(test, output, loss) == ["COL002"]


@pytest.mark.right
@pytest.mark.parametrize(
    ("test", "output", "loss"),
    [
        ("accelerator.gather(loss).mean() > 9", "model(x)", 'parts["loss"].mean()'),
        ("torch.isnan(loss)", "model(x)", "accelerator.reduce(parts)"),
        ("torch.isnan(loss)", "diffusion.describe(model, x)", 'parts["loss"].mean()'),
    ],
)
def test_a_test_that_all_ranks_may_decide_alike(test: str, output: str, loss: str) -> None:
    assert accelerated(test, output, loss) == []


LOADS = """
import hydra
def read(path):
    return torch.load(path{mapped})
def fill(net, state):
    net.load_state_dict(state["model"])
{decorator}
def main(cfg):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(torch.nn.Linear(8, 1).cuda())
    {body}
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""


def loads(body: str, mapped: str = "", decorator: str = "") -> list[str]:
    """Return the codes of what is found in a program that loads a checkpoint."""
    return [each.code for each in lint(LOADS.format(body=body, mapped=mapped, decorator=decorator))]


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("body", "decorator"),
    [
        ("model.load_state_dict(read(cfg.path))", ""),
        ("found = read(cfg.path)\n    fill(model, found)", ""),
        ("found = read(cfg.path)\n    fill(model, found)", '@hydra.main(config_path="conf")'),
        ('if cfg.kind == "bert":\n        fill(model, read(cfg.path))', ""),
        (
            "if os.path.exists(cfg.path):\n        state = read(cfg.path)\n        fill(net=model, state=state)",
            "",
        ),
    ],
)
def test_a_checkpoint_that_other_functions_restore(body: str, decorator: str) -> None:
    assert loads(body, decorator=decorator) == ["CKP003"]


@pytest.mark.right
@pytest.mark.parametrize(
    ("body", "mapped"),
    [
        ("fill(model, read(cfg.path))", ", map_location='cpu'"),
        ("print(read(cfg.path))", ""),
        ("if cfg.is_leader:\n        fill(model, read(cfg.path))", ""),
        ("if cfg.gpu is None:\n        fill(model, read(cfg.path))", ""),
        ("if dist.get_rank() == 0:\n        fill(model, read(cfg.path))", ""),
    ],
)
def test_a_checkpoint_that_is_mapped_or_of_one_rank(body: str, mapped: str) -> None:
    assert "CKP003" not in loads(body, mapped)


DEVICES = """
import vision
def work(rank):
    {first}
    dist.init_process_group("nccl", rank=rank, world_size=2)
    net = vision.build()
    net = net.{move}
    model = DDP(net, device_ids=[rank])
    dist.destroy_process_group()
if __name__ == "__main__":
    {start}
    mp.spawn(work, nprocs=2)
"""


def devices(first: str = "pass", move: str = "cuda()", start: str = "pass") -> str:
    """Fill the frame in."""
    return DEVICES.format(first=first, move=move, start=start)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "start", ["pass", 'os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"', 'print("CUDA_VISIBLE_DEVICES")']
)
def test_all_ranks_take_the_first_gpu_where_no_file_sets_another(start: str) -> None:
    assert "BKD009" in [each.code for each in lint(devices(start=start))]


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        devices("torch.cuda.set_device(rank)"),
        devices('os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)'),
        devices(move="cuda(rank)"),
    ],
)
def test_a_rank_that_takes_its_own_gpu(text: str) -> None:
    assert "BKD009" not in [each.code for each in lint(text)]


@pytest.mark.right
def test_a_library_that_sets_no_device_is_asked_about() -> None:
    text = "def setup(args):\n    {}\n    dist.init_process_group('nccl')\ndef move(net):\n    return net.cuda()\n"
    assert [each.code for each in ask(text.format("pass"))] == ["BKD009"]
    assert not ask(text.format("torch.cuda.set_device(args.gpu)"))


FOLDERS = """
def {name}(path):
    if not os.path.exists(path):
        os.makedirs(path)
dist.init_process_group("nccl")
{name}(args.output)
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_directory_of_a_training_is_told() -> None:
    assert [each.code for each in lint(FOLDERS.format(name="prepare"))] == ["CKP005"]


@pytest.mark.right
def test_a_directory_of_what_one_process_is_run_for_is_asked_about() -> None:
    text = FOLDERS.format(name="run_inference")
    assert not lint(text)
    assert "CKP005" in [each.code for each in ask(text)]


@pytest.mark.wrong
def test_reading_settings_by_an_unknown_package_makes_no_group() -> None:
    text = 'import studio\nif __name__ == "__main__":\n    cfg = studio.Config.fromfile("a.py")\n    dist.barrier()\n'
    assert [each.code for each in lint(text)] == ["ENV019"]


@pytest.mark.wrong
def test_a_path_over_many_functions_is_the_same_on_all_ranks() -> None:
    text = """
def put(state, target):
    torch.save(state, target)
def keep(args, epoch, model):
    name = str(epoch)
    targets = [args.output + "/" + ("net-%s.pt" % name)]
    for target in targets:
        put(model.state_dict(), target)
def main(args):
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(8, 1))
    for epoch in range(args.begin, args.epochs):
        keep(args, epoch, model)
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.Namespace(output="out", begin=0, epochs=8))
"""
    assert "CKP001" in [each.code for each in lint(text)]
