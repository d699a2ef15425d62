"""Ways of writing by which mistakes in code of others were missed: helpers, tables, tuples, sums, options that are None."""

from __future__ import annotations

import pytest

from ddpdoctor.judge import Finding
from tests.lint.judging import ask, find_marked, lines_of, lint

RESUMES = """
class Learner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0
    def state_dict(self):
        return {saved}
    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        {restore}
        self.step = state["step"]
    def resume(self, path):
        self.load_state_dict(torch.load(path, map_location="cpu"))  # here
    def train(self, batches):
        for x in batches:
            self.model(x).sum().backward()
            self.optimizer.step()
            {count}

dist.init_process_group("gloo")
net = DDP(torch.nn.Linear(2, 2))
learner = Learner(net, torch.optim.Adam(net.parameters()))
learner.resume("last.pt")
learner.train(load())
if dist.get_rank() == 0:
    torch.save(learner.state_dict(), "next.pt")
dist.destroy_process_group()
"""
SAVED = (
    "{'model': self.model.state_dict(), 'optimizer': {k: v for k, v in self.optimizer.state_dict().items()}}"
)
LOADER = """
def main():
    dist.init_process_group("gloo")
    data = torchvision.datasets.ImageFolder("x")
    model = DDP(net)
    sampler = DistributedSampler(data)
    options = {options}
    {change}
    loader = torch.utils.data.DataLoader(data, {given}**options)
    for epoch in range(9):
        {before}
        for x in loader:
            model(x).sum().backward()
    dist.destroy_process_group()
main()
"""
SAVES = """
def save_all(*args, **kwargs):
    {guard}torch.save(*args, **kwargs)
def save_model(args, model, scaler):
    if scaler is not None:
        save_all(model.state_dict(), args.output + "/last.pt")
def main(args):
    dist.init_process_group("gloo")
    model, scaler = DDP(net), {scaler}
    save_model(args, model, scaler=scaler)
    dist.destroy_process_group()
main(parse())
"""
STOPS = """
model = DDP(net)
for x, y in batches:
    {forward}
    if torch.isnan(loss):
        continue
    loss.backward()
    {after}
"""
WAITS = """
def share(parts, whole, first, second):
    torch.cuda.synchronize()
    {lines}
    return whole
"""
THROUGH = """
dist.init_process_group("gloo")
model = DDP(net)
for epoch in range(9):
    for x in batches:
        loss = model.module(x).sum()
        loss.backward()
        {reduced}
    {evaluation}
dist.destroy_process_group()
"""
BATCHES = """
{head}
def main():
    dist.init_process_group("gloo")
    model = DDP(net)
    sampler = DistributedSampler(data)
    batches = torch.utils.data.BatchSampler(sampler, 8, drop_last=True)
    loader = torch.utils.data.DataLoader(data, batch_sampler=batches)
    for epoch in range(9):
        {before}
        train(model, loader)
def train(model, loader):
    for x in helper.count(loader):
        model(x).sum().backward()
main()
"""


def of(findings: list[Finding], code: str) -> list[Finding]:
    return [each for each in findings if each.code == code]


@pytest.mark.parametrize(
    ("saved", "count"),
    [
        (SAVED, "self.step += 1"),
        ("dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict())", "self.step += 1"),
        (SAVED, "list(range(self.step, 100))"),
    ],
)
def test_optimizer_lost_behind_a_method_that_is_given_the_checkpoint(saved: str, count: str) -> None:
    text = RESUMES.format(saved=saved, restore="pass", count=count)
    assert lines_of(lint(text), "CKP007") == find_marked(text)


@pytest.mark.parametrize(
    ("restore", "count"),
    [
        ("self.optimizer.load_state_dict(state['optimizer'])", "self.step += 1"),
        ("helper.load(self.optimizer, state)", "self.step += 1"),
        ("pass", "pass"),  # nothing counts on from the step: it is shown alone
    ],
)
def test_optimizer_restored_or_training_that_does_not_go_on(restore: str, count: str) -> None:
    assert of(lint(RESUMES.format(saved=SAVED, restore=restore, count=count)), "CKP007") == []


def test_key_of_a_configuration_is_not_that_of_a_checkpoint() -> None:
    restore = "print(cfg['optimizer'])"
    assert of(lint(RESUMES.format(saved=SAVED, restore=restore, count="self.step += 1")), "CKP007")


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ("dict(batch_size=8)", "pass"),
        ("{'batch_size': 8}", "options['num_workers'] = 4"),
        ("{'batch_size': 8} if large else {}", "options.update({'pin_memory': True})"),
    ],
)
def test_table_of_arguments_without_a_sampler(options: str, change: str) -> None:
    text = LOADER.format(options=options, change=change, given="", before="pass")
    assert len(of(lint(text), "DAT001")) == 1


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ("dict(sampler=sampler)", "pass"),
        ("{'batch_size': 8}", "options['sampler'] = sampler"),
        ("{'batch_size': 8}", "options.update(sampler=sampler)"),
        ("{'batch_size': 8}", "options.update(more)"),
        ("{'batch_size': 8}", "options.setdefault('sampler', sampler)"),
        ("make()", "pass"),
    ],
)
def test_table_of_arguments_that_may_have_a_sampler(options: str, change: str) -> None:
    text = LOADER.format(options=options, change=change, given="", before="sampler.set_epoch(epoch)")
    assert of(lint(text), "DAT001") == []


def test_sampler_of_a_loader_with_a_table_of_other_arguments() -> None:
    text = LOADER.format(options="dict(batch_size=8)", change="pass", given="sampler=sampler, ", before="{}")
    assert len(of(lint(text.format("pass")), "DAT002")) == 1
    assert of(lint(text.format("sampler.set_epoch(epoch)")), "DAT002") == []


def test_save_behind_an_object_that_all_ranks_have() -> None:
    scaler = "torch.cuda.amp.GradScaler()"
    assert len(of(lint(SAVES.format(guard="", scaler=scaler)), "CKP001")) == 1


@pytest.mark.parametrize(
    ("guard", "scaler"),
    [
        ("if dist.get_rank() == 0: ", "torch.cuda.amp.GradScaler()"),
        ("", "helper.make_scaler()"),
        ("", "Scaler() if dist.get_rank() == 0 else None"),
    ],
)
def test_save_of_one_rank_or_behind_what_only_some_have(guard: str, scaler: str) -> None:
    assert of(lint(SAVES.format(guard=guard, scaler=scaler)), "CKP001") == []


@pytest.mark.parametrize(
    "forward",
    [
        "out, extra = model(x)\n    loss = criterion(out, y)",
        "out, extra = model(x)\n    loss = 0\n    for part in out:\n        loss += F.nll_loss(out, y)\n    loss /= 4",
    ],
)
def test_loss_of_one_rank_in_a_tuple_or_a_sum(forward: str) -> None:
    for after in ("pass", "dist.reduce(loss, 0)"):
        (found,) = of(lint(STOPS.format(forward=forward, after=after)), "COL002")
        assert "continue" in found.message


@pytest.mark.parametrize(
    "forward",
    [
        "out, extra = model(x)\n    loss = 0\n    loss += F.nll_loss(out, y)\n    dist.all_reduce(loss)",
        "out, extra = model(x)\n    loss, extra = reduce_all(out, y)",
        "out = model(x)\n    loss = 0\n    loss = helper.share(out)\n    loss += 1",
    ],
)
def test_loss_that_all_ranks_have_or_may_have(forward: str) -> None:
    assert of(lint(STOPS.format(forward=forward, after="pass")), "COL002") == []


@pytest.mark.parametrize(
    "lines",
    [
        "dist.all_gather(parts, whole, async_op=True)\n    whole = []\n    for part in parts:\n        whole.append(part)",
        "dist.all_reduce(whole, async_op=True)\n    whole /= dist.get_world_size()",
        "dist.all_reduce(whole, async_op=True)\n    if first:\n        print(whole)",
        "work = dist.all_reduce(first, async_op=True)\n    work = dist.all_reduce(second, async_op=True)\n    work.wait()",
    ],
)
def test_work_whose_tensor_is_read_or_whose_variable_is_bound_anew(lines: str) -> None:
    assert len(of(lint(WAITS.format(lines=lines)), "COL007")) == 1


@pytest.mark.parametrize(
    "lines",
    [
        "dist.all_gather(parts, whole, async_op=True)\n    dist.barrier()\n    for part in parts:\n        print(part)",
        "dist.all_reduce(whole, async_op=True)\n    settle()\n    whole /= dist.get_world_size()",
        "work = dist.all_reduce(first, async_op=True)\n    works = [work]\n    work = second\n    wait_all(works)",
        "work = dist.all_reduce(first, async_op=True)\n    torch.cuda.synchronize()\n    work = second",
    ],
)
def test_work_that_is_kept_or_settled(lines: str) -> None:
    assert of(lint(WAITS.format(lines=lines)), "COL007") == []


BEGUN = "work = dist.all_reduce(whole, async_op=True)\n    "


@pytest.mark.parametrize(
    "lines",
    [
        "mean = whole[0] / whole[1]\n    work.wait()",
        "whole /= 2\n    work.wait()",
        "far = whole.item()\n    work.wait()",
    ],
)
def test_tensor_that_is_used_before_its_work_is_waited_for(lines: str) -> None:
    (found,) = of(lint(WAITS.format(lines=BEGUN + lines)), "COL007")
    assert "before the wait" in found.message


@pytest.mark.parametrize(
    "lines",
    [
        "other = first / 2\n    work.wait()\n    whole /= 2",
        "kept = (whole, 1)\n    work.wait()",
        "works = [work]\n    mean = whole / 2\n    wait_all(works)",
        "settle()\n    mean = whole / 2\n    work.wait()",
        "size = whole.numel() / 2\n    work.wait()",
        "if first:\n        work.wait()\n    mean = whole / 2",
    ],
)
def test_tensor_that_is_only_named_before_its_work_is_waited_for(lines: str) -> None:
    assert of(lint(WAITS.format(lines=BEGUN + lines)), "COL007") == []


EVALUATES = "with torch.no_grad():\n        print(model(x))"


@pytest.mark.parametrize(
    ("reduced", "evaluation"), [("pass", EVALUATES), ("dist.all_reduce(loss)\n        list(net.parameters())", EVALUATES)]
)  # fmt: skip
def test_bare_model_is_trained_and_the_wrapper_only_evaluated(reduced: str, evaluation: str) -> None:
    assert len(of(lint(THROUGH.format(reduced=reduced, evaluation=evaluation)), "DDP005")) == 1


def test_bare_model_whose_gradients_are_reduced() -> None:
    reduced = "for p in net.parameters():\n            dist.all_reduce(p.grad)"
    assert of(lint(THROUGH.format(reduced=reduced, evaluation=EVALUATES)), "DDP005") == []


@pytest.mark.parametrize(
    "head", ["", "import pytorch_lightning as pl\nclass Coder(pl.LightningModule):\n    pass"]
)
def test_sampler_of_batches_is_never_told_the_epoch(head: str) -> None:
    assert len(of(lint(BATCHES.format(head=head, before="pass")), "DAT002")) == 1
    assert of(lint(BATCHES.format(head=head, before="sampler.set_epoch(epoch)")), "DAT002") == []


def test_sampler_of_a_trainer_is_told_by_it() -> None:
    head = "import pytorch_lightning as pl\npl.Trainer().fit(net)"
    assert of(lint(BATCHES.format(head=head, before="pass")), "DAT002") == []


def test_pretrained_file_without_a_device_is_asked_about() -> None:
    text = """
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        net = Net().cuda()
        net.load_state_dict(torch.load(args.pretrained{map}))
        dist.destroy_process_group()
    main(parse())
    """
    assert [each.code for each in ask(text.replace("{map}", ""))] == ["CKP003"]
    assert of(lint(text.replace("{map}", "")), "CKP003") == []
    assert ask(text.replace("{map}", ", map_location='cpu'")) == []


@pytest.mark.parametrize(("test", "asked"), [("pretrained", True), ("args.resume", False)])
def test_weights_below_a_test_of_their_origin_are_asked_about(test: str, asked: bool) -> None:
    text = f"""
    def make(args, pretrained=True):
        net = Net().cuda()
        if {test}:
            net.load_state_dict(torch.load("./weights/resnet.pth"), strict=False)
        return net
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        make(args)
        dist.destroy_process_group()
    main(parse())
    """
    assert [each.code for each in of(lint(text), "CKP003")] == ([] if asked else ["CKP003"])
    assert [each.code for each in ask(text)] == (["CKP003"] if asked else [])


@pytest.mark.parametrize(
    ("path", "beside", "asked"),
    [
        ("'./weights/resnet.pth'", "pass", True),
        ("f'./weights/resnet{args.depth}.pth'", "pass", True),
        (
            "os.path.join(args.out, 'latest.pth')",
            "torch.save(net.state_dict(), args.out + '/latest.pth')",
            False,
        ),
        ("'./weights/resnet.pth'", "write('resnet', net)", False),
        ("args.path", "pass", False),
    ],
)
def test_weights_that_are_named_in_no_other_line_are_asked_about(path: str, beside: str, asked: bool) -> None:
    text = f"""
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        net = Net().cuda()
        net.load_state_dict(torch.load({path}))
        if dist.get_rank() == 0:
            {beside}
        dist.destroy_process_group()
    main(parse())
    """
    assert [each.code for each in of(lint(text), "CKP003")] == ([] if asked else ["CKP003"])
    assert "CKP003" in {each.code for each in ask(text)} or not asked


@pytest.mark.parametrize(
    ("path", "owner", "codes"),
    [
        ("args.resume", "net", ["CKP003"]),
        ("args.resume", "train_sampler", []),
        ("args.resume", "scaler", []),
        ("os.path.join(args.folder, 'sampler')", "net", ["CKP003"]),
        ("os.path.join(args.folder, str(dist.get_rank()))", "net", []),  # the file of each rank
        ("args.folder + str(args.rank)", "net", []),
        ("Path(args.folder) / CONSOLIDATED", "net", []),
        ("{'b': 'pretrained/b.pth', 'l': 'pretrained/l.pth'}[args.size]", "net", []),
        ("{'b': 'runs/b.pth', 'l': 'runs/l.pth'}[args.size]", "net", ["CKP003"]),
    ],
)
def test_loads_of_what_holds_tensors_of_a_gpu(path: str, owner: str, codes: list[str]) -> None:
    text = f"""
    CONSOLIDATED = "consolidated.pth"
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        net, train_sampler = Net().cuda(), make(args)
        {owner}.load_state_dict(torch.load({path}))
        dist.destroy_process_group()
    main(parse())
    """
    assert [each.code for each in of(lint(text), "CKP003")] == codes
    assert owner == "net" or ask(text) == []


@pytest.mark.parametrize(
    ("saved", "key", "codes"),
    [
        ("{'ema': net.state_dict(), 'step': 3}", "ema", ["CKP003"]),
        ("dict(net=net.state_dict(), step=3)", "step", ["CKP003"]),
        ("{'model': net.state_dict()}", "model", []),  # anybody's key
        ("{'epoch': 1, 'step': 3}", "step", []),  # no tensors
        ("{'ema': net.state_dict()}", "teacher", []),
    ],
)
def test_loads_of_what_the_program_saves_by_its_keys(saved: str, key: str, codes: list[str]) -> None:
    text = f"""
    def main(args):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        net = Net().cuda()
        found = torch.load(args.pretrained)
        start = found["{key}"]
        if dist.get_rank() == 0:
            state = {saved}
            torch.save(state, args.out)
        dist.destroy_process_group()
    main(parse())
    """
    assert [each.code for each in of(lint(text), "CKP003")] == codes


PLAIN = """
def make(args, data):
    if {test}:
        sampler = {sampler}
    else:
        sampler = None
    return torch.utils.data.DataLoader(data, 8, sampler=sampler)
"""
RANDOM = "torch.utils.data.RandomSampler(data)"


@pytest.mark.parametrize(
    "test",
    [
        "args.distributed",
        "is_distributed()",
        "hparams.distributed_run",
        "getattr(args, 'distributed', False)",
        "num_gpus > 1",
        "world != 1",
        "dist.get_world_size() >= 2",
        "args.local_rank != -1",
    ],
)
def test_random_sampler_on_the_side_of_several_ranks_is_asked_about(test: str) -> None:
    assert [each.code for each in ask(PLAIN.format(test=test, sampler=RANDOM))] == ["DAT001"]


@pytest.mark.parametrize(
    ("test", "sampler"),
    [
        ("args.distributed", "DistributedSampler(data)"),
        ("not args.distributed", RANDOM),
        ("args.shuffle", RANDOM),
        ("num_gpus > 0", RANDOM),
        ("world_size == 1", RANDOM),
        ("args.local_rank == -1", RANDOM),
        ("n_workers > 1", RANDOM),
        ("args.distributed", "torch.utils.data.RandomSampler(shard)"),
    ],
)
def test_random_sampler_of_one_rank_or_of_a_share(test: str, sampler: str) -> None:
    assert ask(PLAIN.format(test=test, sampler=sampler)) == []


SHUFFLED = """
class Clips(torch.utils.data.Dataset):
    def __init__(self, path):
        self.rows = {rows}
        random.seed(1234)
        random.shuffle(self.rows)
    def __getitem__(self, index):
        return self.rows[index]
    def __len__(self):
        return len(self.rows)
def make(args, num_gpus):
    clips = Clips(args.path)
    sampler = {sampler}
    return torch.utils.data.DataLoader(clips, 8, sampler=sampler)  # here
"""
CHOSEN = {
    "rows": "open(path).readlines()",
    "sampler": "torch.utils.data.RandomSampler(clips) if num_gpus > 1 else None",
}


def test_random_sampler_of_a_dataset_that_shuffles_its_rows() -> None:
    """Another order is no share: each rank still goes through all rows."""
    text = SHUFFLED.format(**CHOSEN)
    assert lines_of(lint(text), "DAT001") == find_marked(text)


@pytest.mark.parametrize(
    "other",
    [
        {"rows": "open(path).readlines()[dist.get_rank()::dist.get_world_size()]"},
        {"rows": "[random.random() for _ in range(100)]"},
        {"sampler": "None if num_gpus > 1 else torch.utils.data.RandomSampler(clips)"},
        {"sampler": "DistributedSampler(clips) if num_gpus > 1 else torch.utils.data.RandomSampler(clips)"},
    ],
)
def test_rows_of_a_rank_of_chance_or_for_one_rank(other: dict[str, str]) -> None:
    assert not lines_of(lint(SHUFFLED.format(**CHOSEN | other)), "DAT001")


MADE = """
class Rows(torch.utils.data.Dataset):
    def __init__(self, path):
        self.rows = open(path).read().splitlines()
        {share}
    def __getitem__(self, place):
        return self.rows[place]
    def __len__(self):
        return len(self.rows)
def make(args):
    data = {data}
    if args.distributed:
        sampler = torch.utils.data.RandomSampler(data)
    else:
        sampler = None
    return torch.utils.data.DataLoader(data, 8, sampler=sampler)
"""


def test_random_sampler_of_a_data_set_that_is_the_same_on_each_rank() -> None:
    findings = lint(MADE.format(share="pass", data="Rows('rows.txt')"))
    assert [(each.code, each.severity) for each in findings] == [("DAT001", "warning")]
    assert "trains on the whole dataset" in findings[0].message


@pytest.mark.parametrize(
    ("share", "data"),
    [
        ("self.rows = self.rows[dist.get_rank() :: dist.get_world_size()]", "Rows('rows.txt')"),
        ("pass", "Rows(f'rows-{args.rank}.txt')"),
        ("pass", "load(args)"),
        ("torch.manual_seed(dist.get_rank())", "Rows('rows.txt')"),
    ],
)
def test_random_sampler_of_what_each_rank_may_have_a_share_of(share: str, data: str) -> None:
    assert of(lint(MADE.format(share=share, data=data)), "DAT001") == []
