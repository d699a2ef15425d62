"""Mistakes behind functions, classes and objects of the program. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint import judging
from tests.lint.judging import lint
from tests.lint.reading import marked, rules_in_head

RING = """
def worker(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(Net())
    keys = nn.Linear(2, 2)
    for x in batches:
        q = model(x)
        for a, b in zip(keys.parameters(), model.module.parameters()):
            a.data.lerp_(b, 0.1)
        k = keys(x).detach()
        got = torch.empty_like(k)
        {first}  # HERE
        {second}
        (q @ got.t()).sum().backward()
    dist.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, (2,), nprocs=2)
"""
SEND, RECEIVE = "dist.send(k, (rank + 1) % world)", "dist.recv(got, (rank - 1) % world)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("first", "second", "rule"), [(SEND, RECEIVE, "all-send"), (RECEIVE, SEND, "all-receive")]
)
def test_all_ranks_of_a_spawned_program_begin_on_one_side(first: str, second: str, rule: str) -> None:
    source = RING.format(first=first, second=second)
    assert rules_in_head(source) == [(rule, marked(source))]


@pytest.mark.right
def test_ranks_that_begin_on_different_sides() -> None:
    first = f"{SEND} if rank % 2 else {RECEIVE}"
    second = f"{RECEIVE} if rank % 2 else {SEND}"
    assert rules_in_head(RING.format(first=first, second=second)) == []


@pytest.mark.wrong
def test_all_ranks_begin_on_one_side_every_few_steps() -> None:
    both = f"if step % args.every == 0:\n            {SEND}  # HERE\n            {RECEIVE}"
    source = RING.replace("for x in", "for step, x in enumerate(").replace("batches:", "batches):")
    source = (
        source.replace("{first}  # HERE", both).replace("{second}", "pass").replace("args.every", "every")
    )
    assert rules_in_head(source) == [("all-send", marked(source))]


@pytest.mark.right
def test_roles_that_an_option_gives_begin_on_different_sides() -> None:
    both = f"if args.role == 'giver':\n            {SEND}\n            {RECEIVE}"
    source = RING.replace("{first}  # HERE", both).replace("{second}", "pass")
    assert rules_in_head(source) == []


TEACHER = """
class Average:
    def __init__(self, net):
        self.shadow = copy.deepcopy(net)  # HERE
    def __call__(self, x):
        with torch.no_grad():
            return self.shadow(x)
def build():
    net = Net()
    {made}
    return model, teacher, torch.optim.SGD(model.parameters(), 0.1)
dist.init_process_group("gloo")
torch.manual_seed({seed})
model, teacher, optimizer = build()
for x in batches:
    F.mse_loss(model(x), teacher(x)).backward()
    optimizer.step()
dist.destroy_process_group()
"""
EARLY = "teacher = Average(net)\n    model = DDP(net)"


@pytest.mark.wrong
def test_an_object_that_a_function_gives_in_a_tuple_is_followed() -> None:
    source = TEACHER.format(made=EARLY, seed="3 + dist.get_rank()")
    assert rules_in_head(source) == [("copied-before-wrap", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("made", "seed"),
    [
        (EARLY, "3"),
        ("model = DDP(net)\n    teacher = Average(model.module)", "3 + dist.get_rank()"),
    ],
)
def test_a_copy_of_what_is_equal_on_all_ranks(made: str, seed: str) -> None:
    assert rules_in_head(TEACHER.format(made=made, seed=seed)) == []


DEVICE = """
class Env:
    def __init__(self):
        self.local_rank = {value}
    def start(self):
        torch.cuda.set_device(self.local_rank)  # HERE
        dist.init_process_group("nccl")
def my_rank():
    return {value} if dist.is_initialized() else 0
env = Env()
env.start()
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("value", ['int(os.environ["RANK"])', 'int(os.environ.get("RANK", 0))'])
def test_the_rank_that_an_object_keeps_as_a_device(value: str) -> None:
    source = DEVICE.format(value=value)
    assert rules_in_head(source) == [("device-by-rank", marked(source))]


CHOSEN = """
if dist.is_available():
    dist.init_process_group("nccl")
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    gpu = {value}
    device = {device}
else:
    gpu, device = 0, "cpu"
{use}
dist.barrier()
dist.destroy_process_group()
"""
NAMED = ("gpu", 'f"cuda:{gpu}"', '"cuda:" + str(gpu)', '"cuda:%d" % gpu', '"cuda:{}".format(gpu)', 'torch.device("cuda", gpu)',
         'torch.device(f"cuda:{gpu}")')  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize("device", NAMED)
def test_the_rank_as_the_device_of_all_but_a_single_process(device: str) -> None:
    for use in ("torch.cuda.set_device(device)  # HERE", "net.to(device)  # HERE"):
        source = CHOSEN.format(value='int(os.environ["RANK"])', device=device, use=use)
        line = 6 if device.startswith("torch.device") else marked(source)
        assert ("device-by-rank", line) in rules_in_head(source)


@pytest.mark.right
@pytest.mark.parametrize("device", NAMED)
@pytest.mark.parametrize("value", ['int(os.environ["LOCAL_RANK"])', 'int(os.environ["RANK"]) % 8'])
def test_the_rank_in_a_node_as_the_device_of_all_but_a_single_process(device: str, value: str) -> None:
    source = CHOSEN.format(value=value, device=device, use="torch.cuda.set_device(device)")
    assert "device-by-rank" not in dict(rules_in_head(source))


@pytest.mark.wrong
def test_the_rank_as_a_device_is_asked_where_the_script_is_started_on_one_node() -> None:
    source = "# torchrun --standalone --nproc-per-node 4 train.py" + CHOSEN.format(
        value='int(os.environ["RANK"])', device='f"cuda:{gpu}"', use="torch.cuda.set_device(device)"
    )
    assert "BKD004" in [each.code for each in judging.ask(source)]
    assert "BKD004" not in [each.code for each in lint(source)]


@pytest.mark.wrong
def test_the_rank_that_a_function_gives_as_a_device() -> None:
    source = DEVICE.replace("self.local_rank = {value}", "self.local_rank = my_rank()")
    source = source.format(value='int(os.environ["RANK"])').replace(" if dist.is_initialized() else 0", "")
    assert rules_in_head(source) == [("device-by-rank", marked(source))]


@pytest.mark.wrong
@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_the_rank_that_arguments_keep_as_a_device(name: str) -> None:
    source = f"""
def start(args):
    args.rank = int(os.environ["{name}"])
    args.gpu = args.rank
    torch.cuda.set_device(args.gpu)  # HERE
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
start(parse())
dist.destroy_process_group()
"""
    assert rules_in_head(source) == [("device-by-rank", marked(source))]


@pytest.mark.right
def test_the_rank_in_a_node_that_arguments_keep() -> None:
    source = """
def start(args):
    args.rank = int(os.environ["SLURM_PROCID"])
    args.gpu = args.rank % torch.cuda.device_count()
    torch.cuda.set_device(args.gpu)
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
start(parse())
dist.destroy_process_group()
"""
    assert rules_in_head(source) == []


@pytest.mark.right
def test_a_job_whose_ranks_are_those_of_one_node_has_one() -> None:
    source = DEVICE.format(value='int(os.environ["RANK"])')
    assert rules_in_head(source.replace('group("nccl")', 'group("nccl", rank=local_rank)')) == []


@pytest.mark.right
@pytest.mark.parametrize("value", ['int(os.environ["LOCAL_RANK"])', 'int(os.environ["RANK"]) % 8'])
def test_the_rank_in_the_node_is_a_device(value: str) -> None:
    assert rules_in_head(DEVICE.format(value=value)) == []


LEADERS = """
class Nodes:
    def __init__(self, size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.leader = {leader}
        self.is_leader = rank == self.leader
        self.group = None
        {made}
dist.init_process_group("gloo")
nodes = Nodes(8)
dist.destroy_process_group()
"""
BELOW = "if self.is_leader:\n            self.group = dist.new_group(list(range(0, world, size)))"


@pytest.mark.wrong
@pytest.mark.parametrize("leader", ["rank // size * size", "size * (rank // size)"])
def test_the_first_rank_of_each_block_makes_a_group_alone(leader: str) -> None:
    (found,) = lint(LEADERS.format(leader=leader, made=BELOW))
    assert found.code == "COL006"


@pytest.mark.right
def test_all_ranks_make_the_group_of_the_first_ones() -> None:
    made = "self.group = dist.new_group(list(range(0, world, size)))"
    assert rules_in_head(LEADERS.format(leader="rank // size * size", made=made)) == []


SAVES = """
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
class Saving:
    @property
    def saves_here(self):
        return {test}
    def gather(self):
        with FSDP.state_dict_type(self.model, StateDictType.{kind}):
            return self.model.state_dict()
    def save(self):
        if not self.saves_here:
            return
        torch.save(self.gather(), "last.pt")
class Trainer(Saving):
    def __init__(self):
        self.model = FSDP(torch.nn.Linear(2, 2))
dist.init_process_group("gloo")
Trainer().save()
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_property_lets_one_rank_gather_the_state() -> None:
    (found,) = lint(SAVES.format(test="dist.get_rank() == 0", kind="FULL_STATE_DICT"))
    assert (found.code, found.details["operation"]) == ("COL002", "state_dict")


@pytest.mark.right
@pytest.mark.parametrize(
    ("test", "kind"), [("self.args.saves", "FULL_STATE_DICT"), ("dist.get_rank() == 0", "LOCAL_STATE_DICT")]
)
def test_a_property_that_asks_for_no_rank_or_a_state_of_its_own(test: str, kind: str) -> None:
    assert "COL002" not in {each.code for each in lint(SAVES.format(test=test, kind=kind))}


ROLES = """
class Worker:
    def __init__(self):
        self.items = []
class Learner:
    def __init__(self, count):
        {made}
        self.group = group
def make(rank, count):
    group = dist.new_group(list(range(count)))
    return Learner(count) if rank < count else Worker()
dist.init_process_group("gloo")
make(dist.get_rank(), options.learners)
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_class_of_some_ranks_makes_a_group() -> None:
    (found,) = lint(ROLES.format(made="group = dist.new_group(list(range(count)))"))
    assert found.code == "COL006"


@pytest.mark.right
def test_a_class_of_some_ranks_keeps_a_group_that_all_made() -> None:
    assert lint(ROLES.format(made="group = None")) == []


GENERATOR = """
class Pair:
    def __init__(self):
        self.g = DDP(Net())
        self.d = DDP(Net())
        self.step_g = torch.optim.SGD(self.g.parameters(), 0.1)
        self.step_d = torch.optim.SGD(self.d.parameters(), 0.1)
    @property
    def bare(self):
        return self.g.module
    def make(self, x):
        self.fake = self.{called}(x)  # HERE
    def learn_d(self, x):
        self.d(x).sum().backward()
        self.step_d.step()
    def learn_g(self):
        self.d(self.fake).sum().backward()
        self.step_g.step()
    def one(self, x):
        self.make(x)
        self.learn_d(x)
        self.learn_g()
dist.init_process_group("gloo")
pair = Pair()
for x in batches:
    pair.one(x)
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_property_gives_the_model_inside_of_the_wrapper() -> None:
    source = GENERATOR.format(called="bare")
    assert rules_in_head(source) == [("bypassed", marked(source))]


@pytest.mark.right
def test_the_wrapper_itself_is_called() -> None:
    assert rules_in_head(GENERATOR.format(called="g")) == []


WORKS = """
class Overlap:
    def __init__(self, model):
        self.flying = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.launch)
    def launch(self, p):
        work = dist.all_reduce(p.grad, async_op=True)  # HERE
        self.flying.append((p, work))
    def finish(self):
        for {target} in self.flying:
            {body}
        self.flying.clear()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("target", ["p, _", "p, work"])
def test_works_in_tuples_of_which_only_the_tensor_is_read(target: str) -> None:
    source = WORKS.format(target=target, body="p.grad.div_(2)")
    assert rules_in_head(source) == [("work-unwaited", marked(source))]


@pytest.mark.right
def test_works_in_tuples_that_are_waited_for() -> None:
    assert rules_in_head(WORKS.format(target="p, work", body="work.wait()")) == []


MOVED = """
class Staged:
    def __init__(self, net, device):
        self.net, self.device = {made}, device
    def enter(self):
        self.model = DDP(self.net, device_ids=[self.device.index])  # HERE
dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
Staged(models.resnet18(), device).enter()
dist.destroy_process_group()
"""


@pytest.mark.right
def test_a_model_that_is_moved_beside_another_value() -> None:
    assert rules_in_head(MOVED.format(made="net.to(device)")) == []


COMMUNICATOR = """
class Comm:
    def synchronize(self):
        dist.barrier()
{made}
"""
SYNCHRONIZES = """
{how}
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        {name}.synchronize()  # here
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("how", "name"),
    [("from comms import comm", "comm"), ("import comms", "comms.comm"), ("from comms import *", "comm")],
)
def test_collective_of_an_object_that_another_file_makes(how: str, name: str) -> None:
    text = SYNCHRONIZES.format(how=how, name=name)
    found = judging.lint(text, comms=COMMUNICATOR.format(made="comm = Comm()"))
    assert judging.lines_of(found, "COL002") == judging.find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize("made", ["comm = make()", "comm = Comm()\ncomm = other.Comm()"])
def test_object_of_another_file_that_may_be_of_another_class(made: str) -> None:
    text = SYNCHRONIZES.format(how="from comms import comm", name="comm")
    assert judging.lint(text, comms=COMMUNICATOR.format(made=made)) == []
