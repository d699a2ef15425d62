"""What was missed or wrongly reported in training code of other projects, each beside what differs in one point."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, find_marked, lines_of, lint

LOAD = """
def warm_start(model, path):
    state = torch.load(path)  # here
    {body}
    model.load_state_dict(own)

def main():
    {visible}
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    size = int(os.environ["WORLD_SIZE"])
    {leave}
    model = torch.nn.Linear(2, 2).cuda()
    warm_start(model, "start.pt")
    dist.destroy_process_group()
main()
"""
UPDATE = "own = model.state_dict()\n    own.update({k: v for k, v in state.items() if k in own})"


@pytest.mark.parametrize("body", [UPDATE, "own = {}\n    for k, v in state.items():\n        own[k[7:]] = v"])
@pytest.mark.parametrize("visible", ["pass", "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2,3'"])
@pytest.mark.parametrize(
    "leave", ["pass", "if size == 1 and dist.get_rank() != 0:\n        raise SystemExit(2)"]
)
@pytest.mark.wrong
def test_loaded_state_is_followed_into_the_table_that_it_fills(body: str, visible: str, leave: str) -> None:
    program = LOAD.format(body=body, visible=visible, leave=leave)
    assert lines_of(lint(program), "CKP003") == find_marked(program)


@pytest.mark.parametrize("value", ["'0'", "os.environ['LOCAL_RANK']"])
@pytest.mark.right
def test_load_where_each_rank_sees_one_gpu(value: str) -> None:
    visible = f"os.environ['CUDA_VISIBLE_DEVICES'] = {value}"
    program = LOAD.format(body=UPDATE, visible=visible, leave="pass")
    assert not lines_of(lint(program), "CKP003")


SAVE = """
def finish(model, path):
    {move}
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save({saved}, path)

def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Linear(2, 2).cuda()
    model.load_state_dict(torch.load("last.pt"))  # here
    finish(model, "last.pt")
main()
"""


@pytest.mark.parametrize(
    ("move", "saved"),
    [
        ("model.cpu()", "state"),
        ("model = model.to('cpu')", "state"),
        ("pass", "{k: v.cpu() for k, v in state.items()}"),
    ],
)
@pytest.mark.right
def test_what_was_saved_from_the_cpu_may_be_loaded_anywhere(move: str, saved: str) -> None:
    assert not lines_of(lint(SAVE.format(move=move, saved=saved)), "CKP003")


@pytest.mark.parametrize(
    ("move", "saved"),
    [
        ("pass", "state"),
        ("loss = model(x).cpu().mean()", "state"),
        ("loss = loss.cpu()", "state"),
        ("model.to('cuda')", "state"),
        ("x.cpu(other)", "state"),
        ("pass", "{'loss': loss.cpu(), 'model': state}"),
    ],
)
@pytest.mark.wrong
def test_what_was_saved_from_a_gpu_is_loaded_there(move: str, saved: str) -> None:
    program = SAVE.format(move=move, saved=saved)
    assert lines_of(lint(program), "CKP003") == find_marked(program)


CLOSURE = """
def step(model, optimizer, rank):
    signal = torch.zeros(1)

    def closure():
        if rank == 0:
            dist.broadcast(signal, src=0)  # here
        return model().sum()

    if rank == 0:
        optimizer.step(closure)
        {first}
    else:
        while True:
            {other}
            if signal.item() == 0:
                break
            closure()

dist.init_process_group("gloo")
step(net, optimizer, dist.get_rank())
dist.destroy_process_group()
"""


@pytest.mark.right
def test_closure_whose_broadcast_the_other_ranks_receive_around_it() -> None:
    call = "dist.broadcast(signal, src=0)"
    assert not lint(CLOSURE.format(first=call, other=call))


@pytest.mark.wrong
def test_closure_whose_broadcast_no_other_rank_receives() -> None:
    program = CLOSURE.format(first="pass", other="signal.zero_()")
    assert lines_of(lint(program), "COL002") == find_marked(program)


METHOD = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)
    def freeze_norms(self, on):
        self.on = on

def train(model, batches, args):
    if {test}:
        model.freeze_norms(True)  # here
    for x in batches:
        model(x).sum().backward()

dist.init_process_group("gloo")
train(DDP(Net()), load(), args)
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_method_asked_of_the_wrapper_below_a_test_about_something_else() -> None:
    program = METHOD.format(test="args.partial")
    (finding,) = [each for each in lint(program) if each.code == "DDP014"]
    assert (finding.where[0].line, finding.severity) == (*find_marked(program), "warning")


@pytest.mark.parametrize("test", ["not hasattr(model, 'module')", "model is None", "args.gpus > 1"])
@pytest.mark.right
def test_method_below_a_test_that_may_ask_for_the_wrapper(test: str) -> None:
    assert not lines_of(lint(METHOD.format(test=test)), "DDP014")


FREED = """
def main(args):
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    if args.evaluate:
        test(model)
    else:
        for p in model.parameters():
            p.requires_grad = False
        {wrap}
        for epoch in range(3):
            {change}
            for x in load():
                model(x).sum().backward()
    dist.destroy_process_group()
main(parse())
"""
FREE = "for p in model.parameters():\n                p.requires_grad = True  # here"


@pytest.mark.wrong
def test_unfrozen_behind_a_wrap_in_the_same_branch() -> None:
    program = FREED.format(wrap="model = DDP(model)", change=FREE)
    (finding,) = [each for each in lint(program) if each.code == "DDP006"]
    assert finding.where[0].line in {line - 1 for line in find_marked(program)} | find_marked(program)


@pytest.mark.right
def test_unfrozen_where_another_branch_wraps() -> None:
    program = FREED.format(wrap="pass", change=FREE).replace("test(model)", "test(DDP(model))")
    assert not lines_of(lint(program), "DDP006")


SPAWNED = """
import {other}
from layers import Block

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

def work(rank):
    {join}
    net = DDP(Net())

if __name__ == "__main__":
    {other}.prepare()
    mp.spawn(work, nprocs=4)
"""


@pytest.mark.wrong
def test_spawned_rank_that_inherits_no_group_from_what_its_parent_calls() -> None:
    findings = lint(SPAWNED.format(other="geometry", join="pass"), layers="")
    assert "ENV019" in {each.code for each in findings}


@pytest.mark.right
def test_spawned_rank_whose_own_call_may_make_the_group() -> None:
    program = SPAWNED.format(other="geometry", join="geometry.prepare(rank)")
    assert "ENV019" not in {each.code for each in lint(program)}
    assert "ENV019" in {each.code for each in ask(program)}


SHARDS = """
class Data(torch.utils.data.Dataset):
    def __init__(self, shape):
        self.shape = shape

def main():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(2, 2)
    data = Data(model.weight.shape{share})
    model = DDP(model.cuda(), device_ids=[rank])
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True)  # here
    for epoch in range(3):
        for x in loader:
            model(x).sum().backward()
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_rank_that_says_where_the_model_is_does_not_shard_the_data() -> None:
    program = SHARDS.format(share="")
    assert lines_of(lint(program), "DAT001") == find_marked(program)


@pytest.mark.right
def test_dataset_that_is_given_the_rank_may_shard() -> None:
    assert not lines_of(lint(SHARDS.format(share=", rank")), "DAT001")


UNWRAPPED = """
def main():
    dist.init_process_group("gloo")
    data = torchvision.datasets.ImageFolder("x")
    loader = torch.utils.data.DataLoader(data, sampler=DistributedSampler(data))
    model = torch.nn.Linear(2, 2)
    {wrap}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_wrapper_that_is_imported_and_used_nowhere() -> None:
    assert "DDP015" in {each.code for each in lint(UNWRAPPED.format(wrap="pass"))}


@pytest.mark.right
def test_wrapper_under_another_name() -> None:
    program = UNWRAPPED.format(wrap="parallel = DDP; model = parallel(model)")
    assert "DDP015" not in {each.code for each in lint(program)}


GUARDED = """
def work(rank):
    pass

def main():
    if {test}:
        mp.spawn(work, nprocs=4)
main()
"""


@pytest.mark.wrong
def test_option_of_several_processes_is_no_question_whether_this_is_a_child() -> None:
    assert [each.code for each in lint(GUARDED.format(test="args.multiprocessing_distributed"))] == ["ENV017"]


@pytest.mark.right
def test_processes_that_a_child_does_not_start_again() -> None:
    assert not lint(GUARDED.format(test="mp.parent_process() is None"))


LOSS = """
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    criterion = torch.nn.MSELoss()
    for x, y in load():
        loss = {loss}
        {reduce}
        if loss.item() < 0.01:
            break
        loss.backward()
    dist.destroy_process_group()
main()
"""


@pytest.mark.parametrize("loss", ["criterion.forward(model(x), y)", "-(model(x) * y).sum()"])
@pytest.mark.wrong
def test_loss_with_a_sign_or_by_forward_decides_for_each_rank(loss: str) -> None:
    assert [each.code for each in lint(LOSS.format(loss=loss, reduce="pass"))] == ["COL002"]


@pytest.mark.parametrize("loss", ["criterion.forward(model(x), y)", "-(model(x) * y).sum()"])
@pytest.mark.right
def test_loss_that_is_reduced_before_it_decides(loss: str) -> None:
    assert not lint(LOSS.format(loss=loss, reduce="dist.all_reduce(loss)"))


UNSHARDED = """
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(30):
        model(torch.randn(8, 16)).square().mean().backward()
        {reduce}
        optimizer.step()
    dist.destroy_process_group()
main()
"""
BY_HAND = "[dist.all_reduce(each.grad) for each in model.parameters()]"


@pytest.mark.wrong
def test_wrapper_is_imported_and_not_used_where_no_sampler_shards() -> None:
    found = lint(UNSHARDED.format(model="torch.nn.Linear(16, 16)", reduce="pass"))
    assert [(each.code, each.severity) for each in found] == [("DDP015", "warning")]


@pytest.mark.right
@pytest.mark.parametrize(
    ("model", "reduce"), [("DDP(torch.nn.Linear(16, 16))", "pass"), ("torch.nn.Linear(16, 16)", BY_HAND)]
)
def test_gradients_are_reduced_where_no_sampler_shards(model: str, reduce: str) -> None:
    assert not lint(UNSHARDED.format(model=model, reduce=reduce))


STARTED = """
def main({parameters}):
    {join}
    model = DDP(torch.nn.Linear(2, 2))
    model(torch.randn(2, 2)).sum().backward()
{start}
"""


@pytest.mark.wrong
def test_script_without_a_main_guard_that_makes_no_group() -> None:
    found = lint(STARTED.format(parameters="", join="pass", start="main()"))
    assert [(each.code, each.severity) for each in found] == [("ENV019", "error")]


@pytest.mark.right
@pytest.mark.parametrize(
    ("parameters", "join", "start"),
    [("", "dist.init_process_group('gloo')", "main()"), ("x", "pass", "main(x)"), ("", "pass", "")],
)
def test_script_that_makes_its_group_or_part_of_one(parameters: str, join: str, start: str) -> None:
    assert "ENV019" not in {
        each.code for each in lint(STARTED.format(parameters=parameters, join=join, start=start))
    }


RESUMED = """
class Trainer:
    def __init__(self, model):
        self.model = model
    def resume(self, state):
        {use}

def find_latest(path):
    state = torch.load(path)  # here
    return state["epoch"], state["model"]

def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    epoch, saved = find_latest("last.pt")
    build(torch.nn.Linear(2, 2).cuda()).resume(saved)
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_loaded_state_comes_out_of_a_tuple_and_into_a_method_by_its_name() -> None:
    program = RESUMED.format(use="self.model.load_state_dict(state)")
    assert lines_of(lint(program), "CKP003") == find_marked(program)


@pytest.mark.right
def test_loaded_state_is_only_printed_by_that_method() -> None:
    assert not lines_of(lint(RESUMED.format(use="print(state)")), "CKP003")


RENEWED = """
def wrap(net):
    model = DDP(net)
    return model, torch.optim.SGD(net.parameters(), lr=0.1)

def main():
    dist.init_process_group("gloo")
    net = torch.nn.Linear(4, 4)
    model, optimizer = wrap(net)
    for epoch in range(3):
        if epoch:
            del model
            model, optimizer = wrap(net)
        for x, y in load():
            loss = torch.nn.functional.cross_entropy(model(x), y)
            {reduce}
            if loss.item() < 0.01:
                break
            loss.backward()
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_wrapper_that_is_deleted_and_made_again_is_one() -> None:
    assert [each.code for each in lint(RENEWED.format(reduce="pass"))] == ["COL002"]


@pytest.mark.right
def test_loss_of_a_wrapper_that_is_made_again_is_reduced() -> None:
    assert not lint(RENEWED.format(reduce="dist.all_reduce(loss)"))


UNFROZEN = """
def main(args):
    dist.init_process_group("gloo")
    model = torchvision.models.resnet18()
    {early}
    if args.gpu is not None:
        model = DDP(model, bucket_cap_mb=args.gpu)
    else:
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        {late}
        for x, y in load():
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()
main(parse())
"""
HELD = "model.fc.requires_grad_(False)"
FREED_PART = "model.module.fc.requires_grad_(True)"


@pytest.mark.wrong
def test_part_is_unfrozen_behind_one_of_two_wraps() -> None:
    found = lint(UNFROZEN.format(early=HELD, late=FREED_PART))
    assert [(each.code, each.severity) for each in found] == [("DDP006", "error")]


@pytest.mark.wrong
def test_part_is_frozen_behind_one_of_two_wraps() -> None:
    found = lint(UNFROZEN.format(early="pass", late="model.module.fc.requires_grad_(False)"))
    assert [(each.code, each.severity) for each in found] == [("DDP006", "error")]


SHARED = """
def main():
    dist.init_process_group("nccl")
    if torch.cuda.is_available():
        device = torch.device({gpu})
    else:
        device = torch.device("cpu")
    model = torch.nn.Linear(2, 2).to(device)
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_first_gpu_or_the_cpu_is_the_first_gpu_of_all_ranks() -> None:
    assert [each.code for each in lint(SHARED.format(gpu='"cuda"'))] == ["BKD009"]


@pytest.mark.right
def test_device_of_the_rank_or_the_cpu() -> None:
    assert not lint(SHARED.format(gpu='"cuda", int(os.environ["LOCAL_RANK"])'))


FIXED_FILE = """
import os
dist.init_process_group("gloo", init_method="file:///tmp/meet", rank=0, world_size=2)
{rest}
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_comment_removes_no_rendezvous_file() -> None:
    assert [each.code for each in lint(FIXED_FILE.format(rest="# remove the file"))] == ["NET010"]


@pytest.mark.right
def test_code_removes_the_rendezvous_file() -> None:
    assert not lint(FIXED_FILE.format(rest="os.remove('/tmp/meet')"))


FOLDER = """
def setup_logger(folder):
    if folder and not os.path.exists(folder):
        os.makedirs(folder){second}

def main(args):
    dist.init_process_group("gloo")
    if not os.path.exists(args.out):
        os.makedirs(args.out){first}
    setup_logger({folder})
main(parse())
"""


@pytest.mark.parametrize("folder", ["args.out", "args.logs"])
@pytest.mark.wrong
def test_a_directory_that_ranks_have_made_or_found_is_not_made_again(folder: str) -> None:
    second = "  # here" if folder == "args.logs" else ""
    program = FOLDER.format(folder=folder, first="  # here", second=second)
    assert lines_of(lint(program), "CKP005") == find_marked(program)
