"""What each run that trains comes to, and what only rank 0 or no rank does on the way."""

from __future__ import annotations

import pytest

from tests.lint.judging import HEAD, ask, find_marked, lines_of, lint

FIRST = """\
def main(args):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    {before}
    if rank == 0:
        folder = os.path.join(args.results, str(len(os.listdir(args.results))))
        {more}
    model = torch.nn.Linear(2, 2).cuda()
    for step in range(args.steps):
        if step % args.every == 0:
            state = {{"model": model.state_dict()}}
            path = f"{{folder}}/{{step:07d}}.pt"
            {save}
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.wrong
def test_save_by_all_into_a_folder_that_only_rank_0_names() -> None:
    text = FIRST.format(before="pass", more="os.makedirs(folder)", save="torch.save(state, path)  # here")
    (found,) = lint(text)
    assert (found.code, found.severity) == ("CKP001", "warning")
    assert lines_of([found], "CKP001") == find_marked(text)
    assert "only rank 0 assigns folder" in found.message


@pytest.mark.right
@pytest.mark.parametrize(
    ("before", "more", "save"),
    [
        ("pass", "pass", "if rank == 0:\n                torch.save(state, path)"),
        ("folder = f'runs/{rank}'", "pass", "torch.save(state, path)"),
        ("pass", "pass", "torch.save(state, path) if rank == 0 else None"),
        ("pass", "return", "torch.save(state, path)"),
    ],
)
def test_save_of_the_rank_that_names_the_folder(before: str, more: str, save: str) -> None:
    assert "CKP001" not in {each.code for each in lint(FIRST.format(before=before, more=more, save=save))}


@pytest.mark.right
@pytest.mark.parametrize(
    "saved",
    [
        "{folder: 1 for folder in state}",
        "sorted(state, key=lambda folder: folder)",
        "folder if rank == 0 else None",
    ],
)
def test_names_that_a_save_does_not_read_on_all_ranks(saved: str) -> None:
    text = FIRST.format(before="pass", more="pass", save=f"torch.save({saved}, f'{{rank}}.pt')")
    assert "CKP001" not in {each.code for each in lint(text)}


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("pass", True),
        ("from settings import *", False),
        ("def load():\n    global folder\n    folder = 'x'\nload()", False),
    ],
)
def test_name_that_something_else_may_bind(more: str, *, found: bool) -> None:
    text = f"""
{more}
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    folder = "results"
torch.save({{}}, f"{{folder}}/{{dist.get_rank()}}.pt")
"""
    assert ("CKP001" in {each.code for each in lint(text)}) is found


SKIPS = """\
dist.init_process_group("gloo")
for step in range(100):
    loss = measure(step)
    if {test}:
        continue
    torch.save(loss, "last.pt")  # here
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "test",
    [
        "torch.isnan(loss)",
        "not math.isfinite(loss)",
        "loss > 1e4",
        "args.resume and step == first_step and loss < 1",
    ],
)
def test_save_by_all_behind_a_question_about_a_number(test: str) -> None:
    text = "import math\n" + SKIPS.format(test=test)
    assert lines_of(lint(text), "CKP001") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "test", ["torch.any(ranks != dist.get_rank())", "skips(loss)", "dist.get_rank()", "step == first_rank"]
)
def test_save_behind_a_question_that_may_be_about_ranks(test: str) -> None:
    assert "CKP001" not in {each.code for each in lint(SKIPS.format(test=test))}


DEVICES = """\
import unread
def connect(backend={backend}):
    {guard}
    dist.init_process_group(backend, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    {set}
def main(args):
    unread.configure(args)
    connect({given})
    model = unread.build(args)
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.evaluate:
        return
    for x, y in unread.load(args):
        x = {move}
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("backend", "given", "guard", "move"),
    [
        ("'nccl'", "", "pass", "x.cuda()"),
        ("'nccl'", "", "pass", "x.cuda(non_blocking=True)"),
        ("'gloo'", "'nccl'", "pass", "x.to('cuda')"),
        ("'gloo' if os.name == 'nt' else 'nccl'", "", "pass", "x.cuda()"),
        ("'nccl' if torch.cuda.is_available() else 'gloo'", "", "pass", "x.cuda()"),
        ("'nccl' if sys.platform != 'win32' else 'gloo'", "", "pass", "x.cuda()"),
        ("'nccl'", "", "if 'RANK' not in os.environ:\n        return", "x.cuda()"),
    ],
)
def test_batches_go_to_the_first_gpu_on_each_run_that_trains(
    backend: str, given: str, guard: str, move: str
) -> None:
    text = DEVICES.format(backend=backend, given=given, guard=guard, move=move, set="pass")
    found = [each for each in lint(text) if each.code == "BKD009"]
    assert [each.severity for each in found] == ["warning"]
    assert "BKD009" not in {each.code for each in ask(text)}
    right = DEVICES.format(
        backend=backend,
        given=given,
        guard=guard,
        move=move,
        set="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    )
    assert "BKD009" not in {each.code for each in (*lint(right), *ask(right))}


@pytest.mark.right
@pytest.mark.parametrize(
    ("backend", "given", "move"),
    [
        ("'nccl'", "'gloo'", "x.cuda()"),
        ("'nccl'", "", "x.cuda(args.gpu)"),
        ("'nccl'", "", "x.cuda() if args.small else x"),
        ("'nccl' if os.name == 'nt' else 'gloo'", "", "x.cuda()"),
        ("pick()", "", "x.cuda()"),
    ],
)
def test_batches_that_may_go_to_a_gpu_of_their_own(backend: str, given: str, move: str) -> None:
    text = DEVICES.format(backend=backend, given=given, guard="pass", move=move, set="pass")
    assert "BKD009" not in {each.code for each in lint(text)}


@pytest.mark.right
@pytest.mark.parametrize(
    "sets",
    [
        "torch.get_device_module('cuda').set_device(int(os.environ['LOCAL_RANK']))",
        "getattr(torch, 'cuda').set_device(int(os.environ['LOCAL_RANK']))",
        "set_it = torch.cuda.set_device\n    set_it(int(os.environ['LOCAL_RANK']))",
        "torch.distributed.device_mesh.init_device_mesh('cuda', (2,))",
        "children = [dict(os.environ, CUDA_VISIBLE_DEVICES=str(i)) for i in range(8)]",
        "child = {**os.environ, 'CUDA_VISIBLE_DEVICES': str(os.getpid() % 8)}",
        "child = dict(os.environ)\n    child['CUDA_VISIBLE_DEVICES'] = os.environ['SLURM_LOCALID']",
        "from common import setup_gpu\n    setup_gpu()",
    ],
)
def test_devices_that_are_set_in_another_way(sets: str) -> None:
    text = DEVICES.format(backend="'nccl'", given="", guard="pass", move="x.cuda()", set=sets)
    assert "BKD009" not in {each.code for each in lint(text)}


@pytest.mark.parametrize(
    ("device", "found"), [("'cuda'", True), ("'cuda:' + os.environ['LOCAL_RANK']", False)]
)
@pytest.mark.parametrize("put", ["setattr(args, 'device', {})", "vars(args).update(device={})"])
def test_device_that_a_call_puts_into_the_settings(put: str, device: str, *, found: bool) -> None:
    text = DEVICES.format(backend="'nccl'", given="", guard="pass", move="x.to(args.device)", set="pass")
    text = text.replace("unread.configure(args)", put.format(device))
    assert ("BKD009" in {each.code for each in lint(text)}) is found


DEVICE_OF_PARAMETER = """\
def train(model, loader, device=torch.device({device})):
    for x in loader:
        model(x.to(device)).sum().backward()
def main(args):
    dist.init_process_group("nccl")
    train(DDP(torch.nn.Linear(2, 2)), [torch.ones(2)]{given})
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.parametrize(
    ("device", "given", "found"),
    [("'cuda'", "", True), ("'cpu'", ", torch.device('cuda')", True), ("'cuda'", ", args.device", False)],
)
def test_device_that_a_function_is_given(device: str, given: str, *, found: bool) -> None:
    text = DEVICE_OF_PARAMETER.format(device=device, given=given)
    assert ("BKD009" in {each.code for each in lint(text)}) is found


SETTINGS = """\
{made}
class Trainer:
    def __init__(self, hparams):
        self.hparams = hparams
    def start(self):
        dist.init_process_group(backend=self.hparams.dist_backend)
        torch.ones(2).cuda()
        dist.destroy_process_group()
if __name__ == "__main__":
    Trainer(settings).start()
"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("settings = HParams(dist_backend='nccl', epochs=3)", True),
        ("settings = argparse.Namespace(dist_backend='nccl')", True),
        ("settings = HParams(dist_backend='gloo')", False),
        ("settings = Plan(dist_backend='nccl')", False),
    ],
)
def test_backend_of_settings_that_a_call_holds(made: str, *, found: bool) -> None:
    assert ("BKD009" in {each.code for each in lint(SETTINGS.format(made=made))}) is found


SAMPLERS = """\
class ShareSampler(torch.utils.data.Sampler):
    def __init__(self, data, ranks=None, shuffle={shuffle}):
        self.data, self.shuffle, self.epoch = data, shuffle, 0
    def __len__(self):
        return len(self.data) // dist.get_world_size()
    def __iter__(self):
        order = torch.Generator()
        order.manual_seed({seed})
        rows = torch.randperm(len(self.data), generator=order) if self.shuffle else torch.arange(len(self.data))
        return iter(rows[dist.get_rank() :: dist.get_world_size()].tolist())
    def set_epoch(self, epoch):
        self.epoch = epoch
"""
READS_AHEAD = """\
import unread
from samplers import ShareSampler
from torch.utils.data import BatchSampler, DataLoader
def train(model, optimizer, loader):
    ahead = unread.Ahead(loader)
    for _ in range(len(loader)):
        model(ahead.next()).sum().backward()
        optimizer.step()
def main(args):
    dist.init_process_group("gloo")
    train_set = unread.data(args)
    sampler_train = ShareSampler(train_set{given})
    batches = BatchSampler(sampler_train, args.batch_size, drop_last=True)
    loader = DataLoader(train_set, batch_sampler=batches)
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        {told}
        train(model, optimizer, loader)
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


def _lint_sampler(
    *, shuffle: str = "True", seed: str = "self.epoch", given: str = "", told: str = "pass"
) -> set[str]:
    text = READS_AHEAD.format(given=given, told=told)
    return {each.code for each in lint(text, samplers=HEAD + SAMPLERS.format(shuffle=shuffle, seed=seed))}


@pytest.mark.wrong
@pytest.mark.parametrize(("shuffle", "given"), [("True", ""), ("False", ", shuffle=True")])
def test_sampler_of_the_files_that_nothing_tells_the_epoch(shuffle: str, given: str) -> None:
    assert "DAT002" in _lint_sampler(shuffle=shuffle, given=given)


@pytest.mark.right
@pytest.mark.parametrize(
    ("shuffle", "given", "told", "seed"),
    [
        ("True", "", "sampler_train.set_epoch(epoch)", "self.epoch"),
        ("True", ", shuffle=False", "pass", "self.epoch"),
        ("False", "", "pass", "self.epoch"),
    ],
)
def test_sampler_of_the_files_that_keeps_its_order_or_has_its_epoch(
    shuffle: str, given: str, told: str, seed: str
) -> None:
    assert "DAT002" not in _lint_sampler(shuffle=shuffle, given=given, told=told, seed=seed)


BESIDE_OTHERS = """\
from torch.utils.data import DataLoader, TensorDataset
def main(args):
    dist.init_process_group("gloo")
    data = TensorDataset(torch.load("x.pt"))
    {made}
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        {told}
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""
BY_COUNT = "sampler = DistributedSampler(data) if args.gpus > 1 else {other}"


@pytest.mark.parametrize("other", ["None", "torch.utils.data.RandomSampler(data)", "unread.Repeated(data)"])
@pytest.mark.parametrize("told", ["pass", "sampler.set_epoch(epoch)"])
def test_sampler_beside_which_another_run_has_another(other: str, told: str) -> None:
    text = "import unread\n" + BESIDE_OTHERS.format(made=BY_COUNT.format(other=other), told=told)
    assert ("DAT002" in {each.code for each in lint(text)}) is (told == "pass")


@pytest.mark.right
@pytest.mark.parametrize(
    "told",
    [
        "sampler.epoch = epoch",
        "sampler.seed = epoch",
        "loader.sampler.seed += 1",
        "setattr(sampler, 'epoch', epoch)",
        "vars(sampler)['epoch'] = epoch",
        "sampler.__dict__['seed'] = epoch",
        "loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=epoch))",
    ],
)
def test_sampler_whose_order_is_set_in_another_way(told: str) -> None:
    text = BESIDE_OTHERS.format(made=BY_COUNT.format(other="None"), told=told)
    assert "DAT002" not in {each.code for each in lint(text)}


@pytest.mark.wrong
@pytest.mark.parametrize(
    "told", ["args.epoch = epoch", "args.seed = epoch", "state = {}; state['epoch'] = epoch"]
)
def test_epoch_that_is_only_noted(told: str) -> None:
    text = BESIDE_OTHERS.format(made=BY_COUNT.format(other="None"), told=told)
    assert "DAT002" in {each.code for each in lint(text)}


IN_BATCHES = """\
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
def main(args):
    dist.init_process_group("gloo")
    data = TensorDataset(torch.load("x.pt"))
    loader = DataLoader(data, batch_sampler=BatchSampler(DistributedSampler(data), 8, True))
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.{sampler}.set_epoch(epoch)  # here
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


def test_epoch_of_a_sampler_that_the_loader_does_not_use() -> None:
    text = IN_BATCHES.format(sampler="sampler")
    (found,) = lint(text)
    assert lines_of([found], "DAT002") == find_marked(text)
    assert "the DistributedSampler made at train.py:" in found.message
    assert found.fix[0].code == "loader.batch_sampler.sampler.set_epoch(epoch)"
    assert found.details["made"] == "elsewhere"
    assert lint(IN_BATCHES.format(sampler="batch_sampler.sampler")) == []


ENDING = """\
import cv2
def start({parameter}):
    dist.init_process_group(backend)
def leave():
    {leave}
def main():
    start({given})
    {work}
    leave()
    {end}
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("parameter", "given", "leave", "work", "end", "found"),
    [
        ("backend='nccl'", "", "pass", "pass", "pass", True),
        ("backend='gloo'", "'nccl'", "print('left')", "cv2.destroyAllWindows()", "pass", True),
        ("backend='nccl'", "", "pass", "pool.shutdown(wait=False)", "loader._shutdown_workers()", True),
        ("backend='nccl'", "'gloo'", "pass", "pass", "pass", False),
        ("backend='nccl'", "", "dist.destroy_process_group()", "pass", "pass", False),
        ("backend='nccl'", "", "pass", "pass", "unread.cleanup()", False),
        ("backend='nccl'", "", "pass", "pass", "unread.destroy_distributed()", False),
        ("backend='nccl'", "", "pass", "atexit.register(dist.destroy_process_group)", "pass", False),
    ],
)
def test_group_of_nccl_that_nothing_ends(
    parameter: str, given: str, leave: str, work: str, end: str, *, found: bool
) -> None:
    text = "import atexit, unread\n" + ENDING.format(
        parameter=parameter, given=given, leave=leave, work=work, end=end
    )
    assert ("COL012" in {each.code for each in lint(text)}) is found


PREPARED = """\
import unread
from accelerate import Accelerator
accelerator = Accelerator()
model, loader = unread.build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = model(x, y).loss
    {agreed}
    if torch.isnan(loss):
        continue
    accelerator.backward(loss)  # here
    optimizer.step()
"""


@pytest.mark.wrong
def test_model_that_is_only_known_to_be_prepared() -> None:
    text = PREPARED.format(agreed="pass")
    assert lines_of(lint(text), "COL002") == find_marked(text)


@pytest.mark.right
def test_loss_of_a_prepared_model_that_all_agree_on() -> None:
    assert lint(PREPARED.format(agreed="loss = accelerator.reduce(loss)")) == []
