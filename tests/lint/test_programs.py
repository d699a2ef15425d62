"""Rules of whole programs: what they make, need and restore; and what is asked instead of told."""

from __future__ import annotations

import pytest

from ddpdoctor.judge import QUESTION, Finding
from tests.lint.judging import ask, lint

START = """
def start(args):
    if "RANK" not in os.environ:
        return
    args.distributed = True
    {before}
    dist.init_process_group("nccl")
    {after}
def main(args):
    start(args)
    model = build(args)
    if args.distributed:
        model = DDP(model)
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""
RESUME = """
def main(args):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model = DDP(model)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")  # HERE
        model.module.load_state_dict(checkpoint["model"])
        {restore}
        {count}
    for epoch in range(start, 10):
        for x in batches:
            model(x).sum().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({{"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}}, args.out)
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""
LOOP = """
def train(model, batches, optimizer, criterion):
    for x, y in batches:
        {step}
        losses = criterion(out, y)
        total = sum(losses[name] * weights[name] for name in losses)
        total.backward()
        optimizer.step()
def main(args):
    dist.init_process_group("gloo")
    model = DDP(build(args))
    {before}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(9):
        train(model, batches, optimizer, Criterion())
    dist.destroy_process_group()
main(parse())
"""


def of(findings: list[Finding], code: str) -> list[Finding]:
    """Return the findings of a code that tell something."""
    return [each for each in findings if each.code == code]


def resume(restore: str = "pass", count: str = 'start = checkpoint["epoch"] + 1') -> list[Finding]:
    """Return what is said of a training that may go on from a checkpoint."""
    return of(lint(RESUME.format(restore=restore, count=count)), "CKP007")


def loop(step: str, before: str = "pass") -> list[Finding]:
    """Return what is said of a loop that trains."""
    return lint(LOOP.format(step=step, before=before))


def test_barrier_right_before_the_group_is_made_is_wrong_whatever_ran_before() -> None:
    (found,) = of(lint(START.format(before="dist.barrier()", after="pass")), "ENV019")
    assert "barrier" in found.message
    assert found.where[0].line != found.where[1].line


@pytest.mark.parametrize("before", ["pass", "if dist.is_initialized():\n        dist.barrier()", "try:\n        dist.barrier()\n    except Exception:\n        pass"])  # fmt: skip
def test_group_that_is_made_first_or_asked_for_is_right(before: str) -> None:
    assert of(lint(START.format(before=before, after="dist.barrier()")), "ENV019") == []


def test_script_that_makes_no_group_is_wrong() -> None:
    text = START.format(before="pass", after="dist.barrier()").replace(
        'dist.init_process_group("nccl")', "pass"
    )
    (found,) = of(lint(text), "ENV019")
    assert found.severity in ("error", "warning")


def test_script_whose_group_may_come_from_elsewhere_is_asked_about() -> None:
    text = START.format(before="pass", after="dist.barrier()").replace(
        'dist.init_process_group("nccl")', "pass"
    )
    found = [
        each for each in ask("import mmengine_like\nmmengine_like.begin()\n" + text) if each.code == "ENV019"
    ]
    assert [(each.role, each.severity) for each in found] == [(QUESTION, "info")]
    assert "mmengine_like" in found[0].message


def test_script_that_turns_ranks_off_is_not_wrong() -> None:
    text = """
    def main(args):
        args.distributed = False
        if args.distributed:
            model = DDP(build())
    if __name__ == "__main__":
        main(argparse.ArgumentParser().parse_args())
    """
    assert of(lint(text), "ENV019") == []


@pytest.mark.wrong
@pytest.mark.parametrize("option", ["args.distributed", "hparams.distributed_run", "cfg.use_ddp"])
def test_setting_for_several_ranks_is_an_option_of_a_program_that_makes_no_group(option: str) -> None:
    text = f"""
    def main({option.partition(".")[0]}):
        model = torch.nn.Linear(2, 2)
        if {option}:
            model = DDP(model)
    if __name__ == "__main__":
        main(argparse.ArgumentParser().parse_args())
    """
    (found,) = of(lint(text), "ENV019")
    assert found.severity in ("error", "warning")


def test_module_that_others_import_makes_no_group_of_its_own() -> None:
    assert of(lint("def wrap(model):\n    return DDP(model)\nmodel = wrap(build())\n"), "ENV019") == []


def test_optimizer_that_is_saved_and_not_restored() -> None:
    (found,) = resume()
    assert "'optimizer'" in found.message
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("restore", "count"),
    [
        ('optimizer.load_state_dict(checkpoint["optimizer"])', "start = checkpoint['epoch'] + 1"),
        ("helper.load_optimizer(optimizer, checkpoint)", "start = checkpoint['epoch'] + 1"),
        ("for name in state:\n            state[name].load_state_dict(checkpoint[name])", "start = checkpoint['epoch']"),
        ("pass", "print(checkpoint['epoch'])"),
        ("pass", "pass"),
    ],
)  # fmt: skip
def test_optimizer_that_is_restored_or_begins_anew(restore: str, count: str) -> None:
    assert resume(restore, count) == []


RETURNED = """
def load(path, model, optimizer):
    checkpoint = torch.load(path, map_location="cpu")
    iteration = checkpoint["iteration"]
    {restore}
    model.load_state_dict(checkpoint["model"])
    return model, optimizer, iteration
def main(args):
    dist.init_process_group("gloo")
    model = DDP(build(args))
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, iteration = load(args.path, model, optimizer)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 9}}, args.out)
    dist.destroy_process_group()
main(parse())
"""


def test_count_that_a_function_gives_back_is_gone_on_from() -> None:
    (found,) = of(lint(RETURNED.format(restore="pass")), "CKP007")
    assert "torch.load" in (found.where[0].source or "")
    restored = 'optimizer.load_state_dict(checkpoint["optimizer"])'
    assert of(lint(RETURNED.format(restore=restored)), "CKP007") == []


def test_to_ask_whether_the_state_is_there_restores_nothing() -> None:
    assert resume('if checkpoint["optimizer"] is not None:\n            print("there")')
    assert resume('if (state := checkpoint["optimizer"]):\n            give(state)') == []
    saved = "save(optimizer.state_dict(), args)\n            torch.save("
    given = RESUME.replace('"optimizer": optimizer.state_dict(), ', "").replace("torch.save(", saved)
    given = given.replace("def main(args):", HANDED)
    assert of(lint(given.format(restore="pass", count='start = checkpoint["epoch"] + 1')), "CKP007")


HANDED = """class Scaled(torch.optim.Adam):
    def load_state_dict(self, state):
        super().load_state_dict(state)
def save(state_of_optimizer, args):
    torch.save({{"args": args, "optimizer": state_of_optimizer}}, args.out)
def main(args):"""


def test_class_of_the_program_makes_no_group_by_its_name() -> None:
    text = START.format(before="pass", after="dist.barrier()").replace(
        'dist.init_process_group("nccl")', "pass"
    )
    submit = "import train\nclass Trainer:\n    def __call__(self):\n        train.main(0)\nexecutor.submit(Trainer())\n"
    assert of(lint(text, submit=submit), "ENV019")


def test_wrap_below_a_test_for_several_ranks_is_asked_about() -> None:
    text = """
    def main(rank, args):
        torch.cuda.set_device(rank)
        model = build(args)
        if args.world_size > 1:
            model = DDP(model, device_ids=[rank])
    if __name__ == "__main__":
        mp.spawn(main, args=(parse(),), nprocs=2)
    """
    assert [each.role for each in ask(text) if each.code == "ENV019"] == [QUESTION]
    made = text.replace(
        "torch.cuda.set_device(rank)", "dist.init_process_group('nccl', rank=rank, world_size=2)"
    )
    assert [each for each in ask(made) if each.code == "ENV019"] == []


def test_loop_that_trains_the_model_inside_of_the_wrapper() -> None:
    (found,) = of(loop("out = model.module(x)"), "DDP005")
    assert found.severity in ("error", "warning")


def test_loop_that_trains_the_model_inside_of_a_wrapper_made_under_a_test() -> None:
    """Whatever else the variable may be has no ``module``."""
    wrapped = LOOP.replace(
        "model = DDP(build(args))", "model = build(args)\n    if args.many:\n        model = DDP(model)"
    )
    assert wrapped != LOOP
    (found,) = of(lint(wrapped.format(step="out = model.module(x)", before="pass")), "DDP005")
    assert found.severity == "warning"
    assert of(lint(wrapped.format(step="out = model(x)", before="pass")), "DDP005") == []


@pytest.mark.parametrize(
    "step",
    [
        "out = model(x)",
        "out = model(x) + model.module.bias(x)",
        "with torch.no_grad():\n            target = model.module(x)\n        out = model(x) - target",
        "out = model.module(x) if short else model(x)\n        model(x)",
    ],
)
def test_loop_that_calls_the_wrapper_or_may(step: str) -> None:
    assert of(loop(step), "DDP005") == []


@pytest.mark.parametrize("frozen", ["net.parameters()", "list(net.parameters())[:2]"])
def test_model_of_an_unknown_maker_is_followed_through_the_wrapper(frozen: str) -> None:
    before = "for p in model.module.parameters():\n        p.requires_grad = True"
    text = LOOP.replace("model = DDP(build(args))", f"net = build(args)\n    for p in {frozen}:\n        p.requires_grad = False\n    model = DDP(net)")  # fmt: skip
    assert of(lint(text.format(step="out = model(x)", before=before)), "DDP006")
    assert of(lint(text.format(step="out = model(x)", before="pass")), "DDP006") == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("net = torch.nn.DataParallel(build(args))\nmodel = DDP(net)\n", True),
        ("net = build(args)\nmodel = torch.nn.DataParallel(net) if args.one else DDP(net)\n", False),
    ],
)
def test_data_parallel_inside_of_the_wrapper(text: str, wrong: bool) -> None:
    found = of(lint(f"args = parse()\n{text}"), "DDP012")
    assert bool(found) is wrong


DATA = """
def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    data = make_data(args)
    sampler = DistributedSampler(data)
    {loader}
    model = DDP(build(args).cuda())
    for epoch in range(9):
        sampler.set_epoch(epoch)
        train(model, loader)
    dist.destroy_process_group()
main(parse())
"""
TIMES = """
def average(value):
    total = value.clone()
    work = 1
    dist.all_reduce(total, {given})
    {after}
def elsewhere():
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "loader",
    [
        "loader = torch.utils.data.DataLoader(data, 8)",
        "loader = torch.utils.data.DataLoader(data, 8, shuffle=sampler is None)",
        "given = dict(batch_size=8)\n    loader = torch.utils.data.DataLoader(data, **given)",
    ],
)
def test_sampler_that_no_loader_is_given(loader: str) -> None:
    (found,) = of(lint(DATA.format(loader=loader)), "DAT001")
    assert found.severity == "warning"
    assert "sampler" in found.message


@pytest.mark.parametrize(
    "loader",
    [
        "loader = torch.utils.data.DataLoader(data, 8, sampler=sampler)",
        "loader = torch.utils.data.DataLoader(data, batch_sampler=Batches(sampler))",
        "given = dict(batch_size=8)\n    given['sampler'] = sampler\n    loader = torch.utils.data.DataLoader(data, **given)",
        "given = dict(sampler=sampler)\n    loader = torch.utils.data.DataLoader(data, **given)",
        "loader = torch.utils.data.DataLoader(data, **options)",
        "loader = torch.utils.data.DataLoader(other, 8)",
        "whole = torch.utils.data.DataLoader(data, 8)\n    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler)",
        "loader = helper.make(data, sampler)\n    whole = torch.utils.data.DataLoader(data, 8)",
    ],
)  # fmt: skip
def test_sampler_that_a_loader_is_given_or_may_be(loader: str) -> None:
    assert of(lint(DATA.format(loader=loader)), "DAT001") == []


def test_work_whose_result_the_next_line_reads_is_wrong_whoever_waits_elsewhere() -> None:
    (found,) = of(lint(TIMES.format(given="async_op=True", after="return total / 2")), "COL007")
    assert found.where[0].line > 0


BEHIND = """
def gather(value, many, keys):
    parts = [torch.empty_like(value) for _ in range(2)]
    if many:
        with torch.no_grad():
            dist.all_gather(parts, value, async_op=True)
    {after}
def elsewhere():
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize("elsewhere", ["torch.cuda.synchronize()", "pass"])
def test_work_that_a_manager_has_is_none_that_is_dropped(elsewhere: str) -> None:
    source = BEHIND.replace("torch.no_grad()", "dist._coalescing_manager()").replace(
        "torch.cuda.synchronize()", elsewhere
    )
    assert of(lint(source.format(after="return parts")), "COL007") == []


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("return parts", 1),
        ("count = 0\n    for key in keys:\n        count += parts[key]\n    return count", 1),
        ("return value", 0),
        ("dist.barrier()\n    return parts", 0),
        ("use(parts)", 1),
        ("use(value)\n    return parts", 0),
    ],
)
def test_work_whose_result_is_read_behind_the_test_that_it_stands_in(after: str, found: int) -> None:
    assert len(of(lint(BEHIND.format(after=after)), "COL007")) == found


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("async_op=False", "return total / 2"),
        ("async_op=True", "torch.cuda.synchronize()\n    return total / 2"),
        ("async_op=True", "print(work)\n    return total / 2"),
    ],
)
def test_work_that_may_be_waited_for_elsewhere(given: str, after: str) -> None:
    assert of(lint(TIMES.format(given=given, after=after)), "COL007") == []


def test_loaded_file_whose_use_is_not_seen_is_asked_about() -> None:
    text = """
    def load(path):
        state = torch.load(path{map})
        return state["args"]
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        use(load(args.resume))
        dist.destroy_process_group()
    main(parse())
    """
    asked = ask(text.replace("{map}", ""))
    assert [each.code for each in asked] == ["CKP003"]
    assert [
        each for each in lint(text.replace("{map}", ", map_location='cpu'")) if each.role == QUESTION
    ] == []


def test_group_of_gpus_whose_ranks_set_no_device_is_asked_about() -> None:
    text = """
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    {set}
    model = DDP(build().to(f"cuda:{os.environ['LOCAL_RANK']}"))
    dist.destroy_process_group()
    """
    asked = ask(text.replace("{set}", ""))
    assert [each.code for each in asked] == ["BKD009"]
    right = text.replace("{set}", "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))")
    assert ask(right) == []


EPOCHS = """
def main(args):
    dist.init_process_group("gloo")
    data = read_data(args)
    sampler = DistributedSampler(data{shuffle}) if args.distributed else None
    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler, shuffle=sampler is None)
    model = DDP(build(args))
    for epoch in range(args.epochs):
        {tell}
        engine.run(model, loader)
def step(loss):
    loss.backward()
main(parse())
"""


@pytest.mark.parametrize(
    ("shuffle", "tell", "wrong"),
    [
        ("", "pass", True),
        ("", "sampler.set_epoch(epoch)", False),
        ("", "sampler.epoch = epoch", False),
        (", shuffle=False", "pass", False),
        (", **options", "pass", False),
    ],
)
def test_epoch_that_no_file_of_a_program_sets(shuffle: str, tell: str, wrong: bool) -> None:
    assert bool(of(lint(EPOCHS.format(shuffle=shuffle, tell=tell)), "DAT002")) is wrong


def test_directory_that_a_helper_makes_first() -> None:
    text = """
    def make(path):
        if not os.path.exists(path):
            os.makedirs(path, exist_ok=True)
    def write(path):
        if not os.path.exists(path):
            os.makedirs(path)
    def main(args):
        dist.init_process_group("gloo")
        {first}
        write(args.out)
        dist.destroy_process_group()
    main(argparse.ArgumentParser().parse_args())
    """
    assert of(lint(text.replace("{first}", "make(args.out)")), "CKP005") == []
    assert of(lint(text.replace("{first}", "make(args.other)")), "CKP005")
