"""Patches of torch, each found by attribute and never by version.

No function that may raise is wrapped where another can be had: a wrapper's frame would show in the program's
tracebacks.
"""

from __future__ import annotations

import os
import sys

from .calls import decorators, groups, recorder, ring, works
from .core import budget, describe, journal, lifetime, process, stopwatch, wrapping
from .core.replacing import leave_uncompiled, replace
from .interpreter import faults, files, settings
from .models import ddp, joins, loads, modules, pipelines, resumes, saved_states, tree
from .training import (
    assembly,
    batches,
    clips,
    clocks,
    evaluations,
    gradients,
    loaders,
    reference,
    seeds,
    steps,
    syncs,
    waits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
"""<linux/prctl.h>"""
_FRAMES = 12
"""Most frames of the stack at a milestone: enough to come out of torch into the user's code."""

_LOWERS = "_reduce_lr"
"""What schedulers that follow a metric call where they lower a learning rate (ReduceLROnPlateau)."""
_DDP = "DistributedDataParallel"
_begun: dict[tuple[str, int], int] = {}
"""What has begun and not ended: what `ring.end_other` wants."""
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def patch_logger(module: ModuleType) -> None:
    """See the public functions of torch.distributed called, before they are made."""
    decorators.install(module)


def patch_c10d(module: ModuleType) -> None:
    """See process groups begin to be made, made, and destroyed."""
    versions = sys.modules.get("torch.version")
    journal.write(
        "torch",
        {
            "version": str(getattr(versions, "__version__", "")),
            "folder": os.path.dirname(str(getattr(sys.modules.get("torch"), "__file__", None) or "")),
            "cuda": getattr(versions, "cuda", None),
            "hip": getattr(versions, "hip", None),
            "distributed": hasattr(module, "ProcessGroup"),
        },
    )
    journal.write("milestone", {"name": "import", "detail": None})
    _leave_uncompiled()
    allow_tracing()
    files.count_meetings = ring.count_meetings
    wrapping.wrap(module, "_check_valid_timeout", before=_note_init_begin)
    wrapping.wrap(module, "_update_default_pg", after=_note_group)
    works.install(module)  # which gives isend and irecv another code
    decorators.watch_undecorated(module)


def patch_ddp(module: ModuleType) -> None:
    """See models wrapped and run for the first time."""
    modules.take_batch = batches.take_call
    modules.take_evaluation = evaluations.take_module
    faults.explain = ddp.note
    wrapper = module.DistributedDataParallel
    wrapping.wrap(wrapper, "_build_params_for_reducer", after=_note_wrapping)
    wrapping.wrap(wrapper, "_ddp_init_helper", after=_note_wrapped)
    wrapping.wrap(wrapper, "_lazy_init", before=_note_first_forward)
    wrapping.wrap(module, "_tree_flatten_with_rref", before=syncs.end_search)
    joins.install(module)
    _see_forwards(wrapper)


def patch_module(module: ModuleType) -> None:
    """See checkpoints loaded of which nothing goes into the model."""
    loads.patch_module(module)


def patch_random(module: ModuleType) -> None:
    """See random number generators seeded."""
    seeds.patch_random(module)


def patch_clipping(module: ModuleType) -> None:
    """See gradients clipped by a norm."""
    clips.patch_clipping(module)


def patch_planner(module: ModuleType) -> None:
    """See distributed checkpoints loaded without the state of an optimizer."""
    resumes.patch_planner(module)


def patch_stage(module: ModuleType) -> None:
    """See the stages of pipelines that run."""
    pipelines.patch_stage(module)


def patch_parameters(module: ModuleType) -> None:
    """See how long steps wait for the communication of shards."""
    waits.patch_parameters(module)


def patch_schedules(module: ModuleType) -> None:
    """See how long stages of pipelines wait for each other."""
    waits.patch_schedules(module)


def patch_optimizer(module: ModuleType) -> None:
    """See state loaded into optimizers, and the first one made where two runs are compared: one may have no group."""
    wrapping.wrap(module.Optimizer, "__setstate__", after=_note_state)
    if reference.enabled:
        wrapping.wrap(module.Optimizer, "_patch_step_function", after=_note_optimizer)


def patch_lr_scheduler(module: ModuleType) -> None:
    """See learning rates lowered by a metric: other schedulers do the same on all ranks."""
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and _LOWERS in vars(kind):
            wrapping.wrap(kind, _LOWERS, after=steps.note_lowered)


def patch_data_parallel(module: ModuleType) -> None:
    """See models given to nn.DataParallel."""
    wrapping.wrap(module, "_get_available_device_type", after=syncs.note_data_parallel)


def patch_worker_signals(module: ModuleType) -> None:
    """Let Python's fault handler stand before the one that torch installs in loader workers.

    Torch's only says that the worker crashed. Ours writes the stack, then hands the signal on to torch's.
    """
    real_set = module._set_worker_signal_handlers

    def set_worker_signal_handlers(*args: Any) -> Any:
        ours = journal.pause_faults()
        try:
            return real_set(*args)
        finally:
            if ours:
                journal.resume_faults()

    replace(module, "_set_worker_signal_handlers", set_worker_signal_handlers)


def patch_anomaly(module: ModuleType) -> None:
    """See autograd's anomaly mode turned on."""
    wrapping.wrap(module.detect_anomaly, "__enter__", after=_note_anomaly)
    wrapping.wrap(module.set_detect_anomaly, "__init__", after=_note_anomaly)


def patch_dataloader(module: ModuleType) -> None:
    """See loaders iterated; where a reference is to see as many samples in a step as its job, see them made."""
    loaders.patch_dataloader(module)
    if reference.widened > 1:
        wrapping.wrap(module.DataLoader, "check_worker_number_rationality", after=reference.widen)


def patch_serialization(module: ModuleType) -> None:
    """See files that torch.save writes, and what torch.load reads, where that is done."""
    wrapping.wrap(module, "_is_path", after=files.note_saving)
    wrapping.wrap(
        sys.modules["torch._utils"], "_validate_loaded_sparse_tensors", after=saved_states.note_file
    )


def patch_safetensors(module: ModuleType) -> None:
    """See files that safetensors writes."""
    wrapping.wrap(module, "_find_shared_tensors", before=files.note_safetensors)


def patch_spawn(module: ModuleType) -> None:
    """See a process start ranks by torch.multiprocessing."""
    wrapping.wrap(module.ProcessContext, "__init__", after=_note_children)


def patch_agent(module: ModuleType) -> None:
    """See a process become an elastic agent."""
    from .nodes import agents

    agent = module.SimpleElasticAgent
    wrapping.wrap(agent, "__init__", after=_note_agent)
    wrapping.wrap(agent, "_exit_barrier", before=agents.note_done)
    # Called when the agent has ended, well or with an exception, and its store is still there.
    wrapping.wrap(agent, "get_event_succeeded", before=agents.leave)
    wrapping.wrap(agent, "get_event_failed", before=agents.leave)


def patch_local_agent(module: ModuleType) -> None:
    """See the agent that torchrun uses look after its ranks, and stop them."""
    from .nodes import agents

    wrapping.wrap(module.LocalElasticAgent, "_monitor_workers", before=agents.look)
    wrapping.wrap(module.LocalElasticAgent, "_shutdown", before=agents.note_stopping)


@lifetime.at(lifetime.FORKED)
def allow_tracing() -> None:
    """Let the supervisor look at this process's stacks, where Yama would forbid it (ptrace_scope 1)."""
    supervisor = os.environ.get("DDPDOCTOR_SUPERVISOR", "")
    if not supervisor.isdigit() or not os.path.exists(YAMA):
        return
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, int(supervisor), 0, 0, 0)
    except Exception as error:
        journal.failed("prctl", error)


def _note_init_begin(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    if frame.f_code.co_name != "init_process_group":
        return
    seen = frame.f_locals
    _begun["init", 0] = ring.begin_other("init_process_group", 0, frame)
    journal.write(
        "milestone",
        {
            "name": "init-begin",
            "detail": {
                "backend": str(seen.get("backend")),
                "init_method": seen.get("init_method"),
                "rank": seen.get("rank"),
                "world_size": seen.get("world_size"),
                "store": type(seen["store"]).__name__ if seen.get("store") is not None else None,
            },
            "variables": process.read_variables(
                *process.VARIABLES
            ),  # a script may have set some since its start
            "frames": describe.list_stack(frame)[:_FRAMES],
        },
    )


def _note_group(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    group = args[0] if args else None
    ring.forget_groups()
    ring.end_other(_begun.pop(("init", 0), 0))
    if group is None:
        assembly.note_end()
        journal.write("milestone", {"name": "destroy", "frames": describe.list_stack(frame)[:_FRAMES]})
        return
    seen = frame.f_locals if frame.f_code.co_name == "init_process_group" else {}
    init_method = seen.get("init_method")
    journal.write(
        "init",
        {
            "backend": str(seen["backend"]) if "backend" in seen else None,
            "rank": int(group.rank()),
            "world_size": int(group.size()),
            "init_method": init_method if isinstance(init_method, str) else None,
            "variables": process.read_variables(*_VARIABLES),
            "frames": describe.list_stack(frame)[:_FRAMES],
        },
    )
    journal.write("milestone", {"name": "init", "detail": None})
    recorder.start()
    if group.size() > 1:
        files.install()
        assembly.install(group.size())


def _note_state(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    loads.note_optimizer(args[0], frame)
    resumes.note_state(args[0])


def _note_optimizer(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    if os.environ.get("RANK"):
        world = os.environ.get("WORLD_SIZE", "")
        assembly.install(int(world) if world.isdecimal() else 1)


def _note_wrapping(result: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    frames = describe.list_stack(frame)[:_FRAMES]
    ddp.remember(args[0], result[0], frames)
    number = ddp.number(args[0])
    members = groups.list_members(getattr(args[0], "process_group", None))
    _begun["wrap", number] = ring.begin_other(_DDP, number, frame, ranks=members)
    journal.write(
        "milestone",
        {
            "name": "wrap-begin",
            "detail": describe.name_type(type(tree.find_model(args[0]))),
            "frames": frames,
        },
    )


def _note_wrapped(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    ring.end_other(_begun.pop(("wrap", ddp.number(args[0])), 0))
    journal.write("milestone", {"name": "wrap", "detail": describe.name_type(type(tree.find_model(args[0])))})


def _note_first_forward(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    journal.write(
        "milestone", {"name": "first-forward", "detail": describe.name_type(type(tree.find_model(args[0])))}
    )
    modules.leave_compiled()
    ddp.watch_forwards(args[0])
    gradients.watch(args[0])
    settings.note_forward()


def _see_forwards(owner: Any) -> None:
    """See each forward begin and end: as `wrapping.wrap` does, with less of ours to run in each step."""
    real_pre, real_post = (getattr(owner, f"_check_sync_bufs_{name}_fwd", None) for name in ("pre", "post"))
    if real_pre is None or real_post is None:
        journal.trouble("patch", f"{owner.__name__} has no _check_sync_bufs_pre_fwd and _post_fwd")
        return
    begun: dict[int, int] = {}
    number_of, begin, end, frame_of = ddp.number, ring.begin_forward, ring.end_other, sys._getframe
    is_training, note, is_due = sys.modules["torch"].is_grad_enabled, ddp.note_forward, batches.is_due
    looks, enter = budget.level != budget.OFF, stopwatch.enter
    seen_enough = batches.seen_enough
    compares = reference.enabled
    begin_search, follow = syncs.begin_search, syncs.note_forward
    kind = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
    door = getattr(getattr(kind, "_wrapped_call_impl", None), "__code__", None)

    def _check_sync_bufs_pre_fwd(self: Any) -> Any:
        syncs = real_pre(self)
        try:
            number = number_of(self)
            reduces = bool(getattr(self, "require_backward_grad_sync", True))  # not within no_sync
            frame: FrameType | None
            try:
                # Behind the door are _call_impl, forward and _pre_forward, whose frames Python would have to make for
                # us alone.
                outer = frame_of(4)
                frame = outer.f_back if outer.f_code is door else frame_of(1)
            except ValueError:  # forward was called itself
                frame = frame_of(1)
            begun[number] = begin(number, bool(syncs), reduces, frame)
            ddp.inside += 1
            if looks and not stopwatch.state.resting:
                enter(stopwatch.FORWARD)
                if syncs:
                    stopwatch.meet()
            if looks and self.training and is_training():
                count = note(number, reduces)
                if reduces and frame is not None:
                    follow(number, frame)
                if count <= clocks.EARLY or not count % clocks.EACH:
                    clocks.note_forward(self, count)
                if compares:
                    reference.note_forward(frame_of(1))
                if seen_enough.get(number) is not loaders.reading and is_due(number):
                    batches.take_forward(number, frame_of(1))
            elif not self.training:
                evaluations.take_forward(number, self, bool(syncs), frame_of(1))
        except Exception as error:
            journal.failed("forward", error)
        return syncs

    def _check_sync_bufs_post_fwd(self: Any) -> Any:
        try:
            number = number_of(self)
            end(begun.pop(number, 0))
            if ddp.inside:
                ddp.inside -= 1
            if looks and self.find_unused_parameters and not self.static_graph:
                begin_search(number)
            if looks and not stopwatch.state.resting:
                enter(stopwatch.OTHER)
        except Exception as error:
            journal.failed("forward", error)
        return real_post(self)

    for wrapper in (_check_sync_bufs_pre_fwd, _check_sync_bufs_post_fwd):
        wrapping.skip_code(wrapper.__code__)
        replace(owner, wrapper.__name__, wrapper)


def _note_anomaly(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    if sys.modules["torch"].is_anomaly_enabled():
        settings.note_anomaly(frame)


def _note_children(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    pids = [process.pid for process in args[0].processes]
    journal.write("role", {"role": "launcher", "how": "torch.multiprocessing.spawn", "children": pids})


def _note_agent(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    journal.write("role", {"role": "launcher", "how": "elastic agent"})


def _leave_uncompiled() -> None:
    """Tell torch's compiler to leave our functions alone: it takes every function that runs below a compiled one."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(f"{__package__}."):
            continue
        for value in list(vars(module).values()):
            own = isinstance(value, type) and value.__module__ == name
            for each in list(vars(value).values()) if own else [value]:
                code = getattr(each, "__code__", None)
                if code is not None:
                    wrapping.skip_code(code)
                    function = type(each) is type(wrapping.skip_code) and each not in steps.TRACED
                    if function and each.__module__.startswith(f"{__package__}."):
                        leave_uncompiled(each)
