"""What a program sees of its own tensors, modules and modes is the same with and without us: step by step."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.marks import mostly_long
from tests.watch.injecting import read_journals, write
from tests.watch.test_fidelity_training import run
from tests.watch.test_watch_levels import START

TRAIN = """
import contextlib, copy, gc, os, warnings
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())

def note(*words):
    pass

def steps(model, optimizer, count=9, around=contextlib.nullcontext, size=4):
    loader = DataLoader(TensorDataset(torch.ones(4 * count, size)), batch_size=4)
    for number, (batch,) in enumerate(loader):
        with around():
            loss = model(batch).pow(2).mean()
            loss.backward()
            gathered = [torch.zeros(2, dtype=loss.dtype) for _ in range(2)]
            dist.all_gather(gathered, loss.detach().repeat(2))
            dist.all_reduce(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        note(number)
    dist.barrier()

def wrap(model, kind=DDP, **options):
    def keep(_, bucket):
        given = torch.futures.Future()
        given.set_result(bucket.buffer())
        return given
    made = kind(model, **options)
    made.register_comm_hook(None, keep)  # this group has no other ranks
    return made

model = Net()
wrapped = wrap(model)
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
"""
SCRIPTS = {
    "a function mode": """
    from torch.overrides import TorchFunctionMode
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            print(getattr(func, "__qualname__", func), func.__name__)
            return func(*args, **(kwargs or {}))
    steps(wrapped, optimizer, around=Seen)
    with Seen():
        steps(wrapped, optimizer)
        model.eval()
        for batch, in DataLoader(TensorDataset(torch.ones(4, 4))):
            model(batch)
    """,
    "a dispatch mode": """
    from torch.utils._python_dispatch import TorchDispatchMode
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            print(func)
            return func(*args, **(kwargs or {}))
    steps(wrapped, optimizer, around=Seen)
    with Seen():
        steps(wrapped, optimizer)
        dist.destroy_process_group()
    """,
    "a default device": """
    torch.set_default_device("cpu")
    steps(wrapped, optimizer)
    print(torch.overrides._len_torch_function_stack())
    """,
    "parameters of a class of their own": """
    seen = {}
    class Own(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            name = getattr(func, "__qualname__", str(func)) + " " + func.__name__
            seen[name] = seen.get(name, 0) + 1
            return super().__torch_function__(func, types, args, kwargs or {})
    class Data(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            name = getattr(func, "__qualname__", str(func)) + " " + func.__name__
            seen[name] = seen.get(name, 0) + 1
            return super().__torch_function__(func, types, args, kwargs or {})
    model.first.weight = Own(torch.ones(8, 4))
    model.first.bias = Own(torch.ones(8))
    wrapped = wrap(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    seen.clear()
    note = lambda number: print(number, sorted(seen.items()))
    steps(wrapped, optimizer)
    rows = torch.ones(4, 4).as_subclass(Data)
    for each in range(3):
        dist.all_reduce(wrapped(rows).sum())
        note(each)
    """,
    "profiles": """
    from torch.profiler import profile, schedule
    def show(profiled):
        print(sorted((event.key, event.count) for event in profiled.key_averages()))
    with profile() as whole:
        steps(wrapped, optimizer)
    show(whole)
    with profile(record_shapes=True, schedule=schedule(wait=1, warmup=1, active=3), on_trace_ready=show) as some:
        note = lambda number: some.step()
        steps(wrapped, optimizer)
    """,
    "execution traces": """
    import json
    from torch.profiler import ExecutionTraceObserver
    observer = ExecutionTraceObserver().register_callback("trace.json")
    observer.start()
    steps(wrapped, optimizer)
    observer.stop()
    observer.unregister_callback()
    names = [node["name"] for node in json.load(open("trace.json"))["nodes"]]
    print(sorted((name, names.count(name)) for name in set(names)))
    """,
    "hooks and modules": """
    from torch.nn.modules import module as modules
    def show(*given):
        print([len(value) for name, value in sorted(vars(modules).items()) if name.startswith("_global_") and name.endswith("hooks")])
        print(modules._has_any_global_hook(), [len(value) for name, value in sorted(vars(model).items()) if name.endswith("_hooks")])
        print([(len(p._backward_hooks or ()), len(p._post_accumulate_grad_hooks or ())) for p in model.parameters()])
    model.first.register_forward_hook(show)
    model.first.weight.register_hook(lambda gradient: print("gradient", gradient.shape))
    show()
    steps(wrapped, optimizer)
    class Raising(torch.nn.Module):
        def forward(self, x):
            raise ArithmeticError("forward")
    try:
        torch.nn.Sequential(Raising())(torch.ones(2))
    except ArithmeticError:
        import traceback
        traceback.print_exc()
    print(torch.nn.Module._compiled_call_impl, torch.nn.Module.__call__.__qualname__)
    """,
    "methods of the model": """
    def count(name):
        def method(self, *args, **kwargs):
            print(name)
            return getattr(super(Counted, self), name)(*args, **kwargs)
        return method
    class Counted(Net):
        pass
    for name in ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children",
                 "buffers", "named_buffers", "_named_members", "state_dict", "__getattr__", "__dir__", "train"):
        setattr(Counted, name, count(name))
    class Around(DDP):
        def __getattr__(self, name):
            print("wrapper", name)
            return super().__getattr__(name)
    model = Counted()
    wrapped = wrap(model, Around, find_unused_parameters=True)
    optimizer = torch.optim.SGD(Net.parameters(model), lr=0.01)
    steps(wrapped, optimizer)
    model.eval()
    for batch, in DataLoader(TensorDataset(torch.ones(4, 4))):
        model(batch)
    """,
    "states of autograd": """
    def pack(tensor):
        print("pack", tuple(tensor.shape))
        return tensor
    def unpack(tensor):
        print("unpack", tuple(tensor.shape))
        return tensor
    def show(number):
        print(number, [each._version for each in (*model.parameters(), *model.buffers())], torch.is_grad_enabled())
        print(torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu"))
        print(torch.get_rng_state().sum().item(), torch.utils.data.get_worker_info())
        print(torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled())
        print(torch._C._functorch.get_dynamic_layer_stack_depth(), torch._C._get_tracing_state())
    note = show
    steps(wrapped, optimizer, around=lambda: torch.autograd.graph.saved_tensors_hooks(pack, unpack))
    torch.use_deterministic_algorithms(True)
    steps(wrapped, optimizer, around=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    with torch.autograd.set_detect_anomaly(True):
        steps(wrapped, optimizer)
    with torch.random.fork_rng():
        steps(wrapped, optimizer)
    model.eval()
    with torch.inference_mode():
        for batch, in DataLoader(TensorDataset(torch.ones(4, 4))):
            print(model(batch).is_inference())
    """,
    "warnings": """
    warnings.simplefilter("error")
    before = list(warnings.filters)
    steps(wrapped, optimizer)
    class Idle(torch.optim.SGD):
        def step(self):
            print("step")
    leaf = torch.ones(3, requires_grad=True)
    optimizer = Idle([leaf], lr=0.1)
    optimizer.param_groups[0]["params"] = [leaf * 2]
    for _ in range(3):
        optimizer.step()
    print(warnings.filters == before)
    """,
    "what is kept alive": """
    def show(number):
        gc.collect()
        # A variable of the program's own frames is not kept by us either.
        print(number, sum(isinstance(each, torch.Tensor) for each in gc.get_objects()))
    note = show
    steps(wrapped, optimizer)
    class Trainer:
        def train(self):
            for number in range(5):
                batch = torch.ones(4, 4)
                loss = model(batch).sum()
                loss.backward()
                optimizer.step()
                del batch, loss
                show(number)
    Trainer().train()
    """,
    "transforms": """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    def show(number):
        plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        rows = torch.ones(4, 4)
        print(torch.func.vmap(torch.nn.Linear(4, 2))(rows).shape, torch.func.grad(lambda x: plain(x).sum())(rows).shape)
        traced = torch.jit.trace(plain, rows)
        print(str(traced.inlined_graph).count("aten::"), len(list(traced.graph.nodes())))
        print(torch.fx.symbolic_trace(plain).code)
        print(make_fx(lambda x: plain(x).sum())(rows).code)
        print(torch.export.export(plain.eval(), (rows,)).graph_module.code)
        print(torch.jit.script(plain).code)
        with FakeTensorMode() as fake:
            print(type(torch.nn.Linear(4, 3)(torch.ones(4, 4))).__name__)
    note = show
    show(0)
    steps(wrapped, optimizer, 3)
    """,
    "memory": """
    from torch.distributed._tools.mem_tracker import MemTracker
    for number in range(4):
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            steps(wrapped, optimizer, 1)
        print({str(device): dict(found) for device, found in tracker.get_tracker_snapshot("peak").items()})
    """,
}
COMPILED = {
    "model": "compiled = torch.compile(model, backend=kind)",
    "inner": "model.compile(backend=kind); compiled = model",
    "wrapper": "compiled = torch.compile(wrapped, backend=kind)",
    "function": "compiled = torch.compile(lambda x: model(x).relu(), backend=kind, fullgraph=True)",
    "optimizer": "compiled = model; optimizer.step = torch.compile(optimizer.step, backend=kind)",
    "collective": """
    def whole(x):
        y = model(x)
        dist.all_reduce(y.detach().clone())
        return y
    compiled = torch.compile(whole, backend=kind, fullgraph=True)
    """,
}
COUNTED = """
    from torch._dynamo.utils import counters
    def show(number):
        print(number, {name: dict(found) for name, found in counters.items() if name not in ("inductor", "frames")})
    kind = "aot_eager"
    note = show
"""


def leave_out(done: tuple[int, str, str]) -> tuple[int, list[str], list[str]]:
    """Return it without what the profiler writes with the time, and without addresses."""
    code, *streams = done
    stdout, stderr = (
        [
            re.sub(r"0x[0-9a-f]+|W\d{4} \S+ \d* ?", "", line)
            for line in text.splitlines()
            if not line.startswith("USDT:")
        ]
        for text in streams
    )
    return code, stdout, stderr


def watch(folder: Path, source: str, *looked: str) -> None:
    script = write(folder, textwrap.dedent(START) + TRAIN + textwrap.dedent(source))
    plain, watched = (leave_out(run(folder, script, each, "deep", 0)) for each in (False, True))
    assert plain[0] == 0, plain
    assert watched[1] == plain[1]
    assert watched == plain
    events = [event for journal in read_journals(folder / "run") for event in journal.events]
    names = [event["event"] for event in events]
    assert {"init", *looked} <= set(names)  # it was watched
    assert "trouble" not in names, [event for event in events if event["event"] == "trouble"]


@pytest.mark.parametrize("name", mostly_long(SCRIPTS, "profiles"))
def test_what_a_program_observes_is_the_same(tmp_path: Path, name: str) -> None:
    watch(tmp_path, SCRIPTS[name], "step", "batch")


@pytest.mark.parametrize(
    "name",
    mostly_long(COMPILED, "inner"),
)
def test_what_is_compiled_is_the_same(tmp_path: Path, name: str) -> None:
    source = textwrap.dedent(COUNTED) + textwrap.dedent(COMPILED[name]) + "\nsteps(compiled, optimizer)\n"
    watch(tmp_path, source, "losses")
