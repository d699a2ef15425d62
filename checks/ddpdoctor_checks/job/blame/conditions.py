"""When a text must not be taken for its code: what other evidence has to say before a text settles anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.texts.matching import CAUSE, CONSEQUENCE, NOISE, TextEntry, find_entry
from ddpdoctor.facts.ownership import PYTHON
from ddpdoctor_checks.common.frames import stands_in, user_frames
from ddpdoctor_checks.common.places import split_endpoint
from ddpdoctor_checks.common.wording import format_bytes
from ddpdoctor_checks.job.blame.views import Clock, View, Views

OF_OTHERS = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
"""Exceptions of torch.distributed: where their text is not known, they may speak of another rank."""

HUP, INT, ABRT, BUS, KILL, SEGV, TERM = 1, 2, 6, 7, 9, 11, 15
"""Linux's numbers (signal(7))."""

LAUNCHERS = ("agent", "its parent")
"""How senders of signals begin that pass on what happened elsewhere: torchrun's agent, and who started the rank."""

MOST_WRITTEN = 200
"""Parameters that a process writes down of one error of the wrapper (``_LISTED`` in ddpdoctor_watch/models/ddp.py)."""

IN_PLACE_CURED = (2, 13)
"""First version of torch with which the in-place broadcast of buffers was seen not to break a second forward (row D06
of the list of failure modes: not reproduced on 2.13.0)."""


@dataclass(slots=True)
class Context:
    """What is known of the whole job while single processes are judged."""

    views: Views
    clock: Clock
    attempt: int
    over: bool
    """The job has ended, so a process without an end is gone."""
    nodes: int
    asked: bool = False
    """The whole job was asked to end: by Ctrl-C, a scheduler, a closed terminal."""
    ended: set[tuple[int, int]] = field(default_factory=set)
    """Node and pid of processes that the agent ended, by its own words."""

    def was_ended(self, view: View) -> bool:
        """Whether the agent ended a process."""
        process = view.process
        if process is not None and process.signal_sender is not None:
            return process.signal_sender.startswith(LAUNCHERS)
        return view.pid is not None and (view.node, view.pid) in self.ended

    def memory_proof(self, view: View) -> tuple[tuple[str, ...], str]:
        """Return what shows that the kernel killed a process for memory, and how sure that is; empty if nothing."""
        process, proof = view.process, []
        memory = self.views.memory.get(view.node)
        if process is not None and (process.signal_sender or "").startswith("kernel"):
            proof.append(f"the signal was sent by the {process.signal_sender}")
        pids = {view.pid, *(worker.pid for worker in view.workers)}
        if memory is not None:
            proof += [line for line in memory.kernel_lines if _killed_pid(line) in pids][:2]
        for text in self.views.loose:
            if text.entry == "kernel-killed" and text.node == view.node:
                named = int(text.groups.get("pid", "-1"))
                proof += [text.text] if named in pids and text.text not in proof else []
        if proof:
            return tuple(proof), "high"
        if memory is not None and memory.oom_kills:
            limit = f" under a limit of {format_bytes(memory.limit_bytes)}" if memory.limit_bytes else ""
            return (f"the cgroup counted {memory.oom_kills} out-of-memory kills{limit}",), "high"
        seen = [text for text in self.views.loose if text.entry in SCHEDULER_KILLS and text.node == view.node]
        return tuple(text.text for text in seen[:1]), "medium"


_OS = re.compile(r"(^|/)os\.py$|^<frozen os>$")
SCHEDULER_KILLS = ("scheduler-saw-kill", "scheduler-memory-limit", "scheduler-out-of-memory")
"""Entries in which a scheduler says that it, or the kernel, ended a step of the job for memory."""
_KILLED = re.compile(r"Kill(?:ed)? process (\d{1,10})")


def _killed_pid(line: str) -> int | None:
    found = _KILLED.search(line)
    return int(found[1]) if found else None


Rule = Callable[[View, dict[str, str], Context], str | None]


def settle_text(view: View, entry: TextEntry, groups: dict[str, str], context: Context) -> str | None:
    """Return the code that a text settles under the evidence at hand; None where it speaks of others only."""
    rule = _RULES.get(entry.id)
    return entry.code if rule is None else rule(view, groups, context)


def settle_exception(
    view: View,
    kind: str,
    frames: Sequence[Frame],
    entry: TextEntry | None,
    groups: dict[str, str],
    context: Context,
) -> str | None:
    """Return the code of an exception of a process's own: a narrow one where its text or stack settles it.

    None where the text turns out to speak of another process.
    """
    name = kind.rpartition(".")[2]
    if entry is not None and entry.role == CAUSE:
        if entry.id == "variable-looked-up":
            return "ENV001" if _from_environ(frames) else "ERR001"
        if entry.id == "port-of-url-invalid":
            return "NET009" if not frames or stands_in(frames, "torch/distributed/") else "ERR001"
        return settle_text(view, entry, groups, context)
    if entry is not None and entry.role == CONSEQUENCE:
        return settle_text(view, entry, groups, context)
    if _never_began(view, frames) and name in (
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ModuleNotFoundError",
    ):
        return "ERR009"
    if name in ("FileNotFoundError", "EOFError", "UnpicklingError", "RuntimeError") and stands_in(
        frames, "torch/serialization.py"
    ):
        return "CKP002" if name != "RuntimeError" else "ERR001"
    if name == "FileNotFoundError" and stands_in(frames, "shutil.py"):
        return "CKP005"
    return "ERR001"


def _from_environ(frames: Sequence[Frame]) -> bool:
    """Whether a KeyError came out of os.environ; a stack that nobody saw may have."""
    return not frames or (frames[0].whose == PYTHON and bool(_OS.search(frames[0].file)))


def _never_began(view: View, frames: Sequence[Frame]) -> bool:
    """Whether a script was still being imported: no function of the user's has been called."""
    started = view.reached("init") or view.reached("wrap") or view.reached("first-forward")
    return not started and all(frame.function == "<module>" for frame in user_frames(frames))


def _only_over_nodes(code: str, instead: str | None) -> Rule:
    def rule(view: View, groups: dict[str, str], context: Context) -> str | None:
        return code if context.nodes > 1 else instead

    return rule


def _unreached(view: View, groups: dict[str, str], context: Context) -> str | None:
    """An interface that NCCL chose is only a line of its start: a rank's own exception ends a job more surely."""
    raised = (each for other in context.views.ranks for each in other.exceptions)
    own = any(each.type.rpartition(".")[2] not in OF_OTHERS and "NCCL" not in each.message for each in raised)
    return "NET003" if context.nodes > 1 and not own else None


def _unconnected(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A mesh that an earlier attempt had: no port is blocked, the peer was not there yet, or not any more."""
    if any(each.attempt < context.attempt and each.reached("init") for each in context.views.ranks):
        return None
    if context.nodes > 1:
        return "NET005"
    return "NET010" if _by_file(view) else "BKD002"


def _name(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A name that the user gave is the master's; one that the c10d agent published is a peer's."""
    launch = context.views.evidence.launch
    given = {launch.master_addr, split_endpoint(launch.rdzv_endpoint)[0] if launch.rdzv_endpoint else None}
    published = launch.rdzv_backend not in (None, "static", "env") and view.role == "rank"
    return "NET008" if published and groups.get("host") not in given else "NET002"


def _before_ranks(code: str) -> Rule:
    """The rendezvous' own failures mean what they say only while no rank has been started."""

    def rule(view: View, groups: dict[str, str], context: Context) -> str | None:
        begun = any(
            rank.process is not None and rank.process.started is not None for rank in context.views.ranks
        )
        return None if begun and view.role != "rank" else code

    return rule


def _in_place(view: View, groups: dict[str, str], context: Context) -> str | None:
    wrapped = view.reached("wrap") or bool(view.wrappers)
    buffers = any(facts.buffers for facts in view.wrappers) or not view.wrappers
    broadcast = all(facts.broadcast_buffers is not False for facts in view.wrappers)
    version = read_version(view.process.torch if view.process is not None else None)
    old = version is None or version < IN_PLACE_CURED
    return "DDP010" if wrapped and buffers and broadcast and old else "ERR001"


def _unused(view: View, groups: dict[str, str], context: Context) -> str:
    """DDP001, or DDP006 where each of these parameters is frozen by now.

    DDP waits for those alone that were not when it wrapped the model (``_build_params_for_reducer`` in
    torch/nn/parallel/distributed.py).
    """
    indices, names = groups.get("indices", "").split(), groups.get("names", "").split(", ")
    known = [each for facts in view.wrappers for each in facts.parameters if each.name]
    said = [each for each in known if str(each.index) in indices or each.name in names]
    whole = len(said) >= min(len(indices or names), MOST_WRITTEN)
    return "DDP006" if said and whole and not any(each.requires_grad for each in said) else "DDP001"


def read_version(text: str | None) -> tuple[int, int] | None:
    """Return major and minor of a version such as ``2.13.0+cpu``; None where there is none."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return (int(found[1]), int(found[2])) if found else None


def _by_file(view: View) -> bool:
    """Whether the ranks found each other by a file, which may be of an earlier run."""
    method = view.process.init_method if view.process is not None else None
    return (method or "").startswith("file:")


def _refused_mesh(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A refused connection in a file:// rendezvous: the file named the addresses of an earlier run."""
    return "NET010" if _by_file(view) else None


def _loopback(view: View, groups: dict[str, str], context: Context) -> str | None:
    """On one node loopback is right: nothing but an old file sends ranks to where nobody is."""
    if context.nodes > 1:
        return "NET003"
    return "NET010" if _by_file(view) else None


def _loopback_refused(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A peer's address is loopback: wrong between nodes; on one node the peer is gone, where others were heard."""
    heard = {each.rank for each in context.views.ranks if each.rank is not None}
    others = any(each.exceptions for each in context.views.ranks if each is not view)
    return "NET003" if context.nodes > 1 or not (others or len(heard) > 1) else None


def _fell_back(view: View, groups: dict[str, str], context: Context) -> str | None:
    """Loopback serves the ranks of one node; where a mesh failed, it did not serve."""
    failed = any("connectFullMesh failed" in text.text for text in context.views.evidence.texts)
    return "NET003" if failed or context.nodes > 1 else None


def _engine_waits(view: View, groups: dict[str, str], context: Context) -> str | None:
    """An engine without requests says the same as one whose workers hang: something else has to speak of trouble."""
    said = {text.entry for text in context.views.evidence.texts if find_entry(text.entry).role != NOISE}
    return "COL005" if said - {"vllm-waits"} else None


def _loader_killed(view: View, groups: dict[str, str], context: Context) -> str | None:
    proof, _ = context.memory_proof(view)
    return "ERR002" if proof else "ERR005"


def _loader_gone(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A worker that said why counts instead; one of which nothing is known is the rank's own loss."""
    signals = {worker.process.signal for worker in view.workers if worker.process is not None}
    pids = groups.get("pids", "").replace(",", " ").split()
    if any(text.entry == "kernel-killed" and text.groups.get("pid") in pids for text in context.views.loose):
        return "ERR002"
    if any(worker.crash is not None for worker in view.workers) or SEGV in signals:
        return "ERR004"
    if BUS in signals:
        return "ENV008"
    if KILL in signals:
        return _loader_killed(view, groups, context)
    return None if any(worker.exceptions for worker in view.workers) else "ERR001"


def _ended_by(view: View, groups: dict[str, str], context: Context) -> str | None:
    """mpirun says by which signal a rank ended; requests to end are what it passes on."""
    return {SEGV: "ERR004", BUS: "ERR003", ABRT: "ERR005", KILL: "ERR005"}.get(int(groups["signal"]))


DEATHS = {
    "Killed": "ERR005", "Segmentation fault": "ERR004", "Bus error": "ERR003",
    "SIGKILL": "ERR005", "SIGSEGV": "ERR004", "SIGBUS": "ERR003",
    "137": "ERR005", "139": "ERR004", "135": "ERR003",
}  # fmt: skip
"""What shells, launchers and container engines say of a process that a signal ended, and the code."""


def _locked(view: View, groups: dict[str, str], context: Context) -> str | None:
    """Memory that could not be registered: where no limit is set it is the adapter, or what lies below it."""
    said = [*context.views.loose, *(text for each in context.views.all for text in each.texts)]
    return "NET016" if any(text.entry == "memory-lock-unlimited" for text in said) else "ENV010"


def _crowded(view: View, groups: dict[str, str], context: Context) -> str | None:
    """More processes than the world holds are no missing ones: the launch and the script count differently."""
    return "ENV003" if int(groups["joined"]) > int(groups["expected"]) else "NET006"


def _unrouted(view: View, groups: dict[str, str], context: Context) -> str | None:
    """A store that could not be reached at first, and was later, is no cause."""
    said = [*context.views.loose, *(text for each in context.views.all for text in each.texts)]
    return None if any(text.entry in AFTER_JOINING for text in said) else "NET013"


AFTER_JOINING = (
    "nccl-timed-out",
    "nccl-work-status",
    "watchdog-stuck",
    "nccl-aborted",
    "gloo-timed-out",
    "gloo-peer-gone",
)
"""Entries of ranks that had formed a group."""

_RULES: dict[str, Rule] = {
    "store-barrier-timed-out": _crowded,
    "store-unroutable": _unrouted,
    "signal-received": lambda view, groups, context: DEATHS[groups["death"]],
    "memory-not-locked": _locked,
    "nccl-memory-not-locked": _locked,
    "scheduler-saw-signal": lambda view, groups, context: DEATHS[groups["death"]],
    "container-ended": lambda view, groups, context: DEATHS[groups["status"]],
    "hydra-saw-signal": _ended_by,
    "launcher-names-signal": lambda view, groups, context: DEATHS[groups["death"]],
    "launcher-saw-signal": _ended_by,
    "shell-said-death": lambda view, groups, context: DEATHS[groups["death"]],
    "shell-saw-signal": lambda view, groups, context: DEATHS[groups["death"]],
    "mpirun-saw-signal": _ended_by,
    "signal-caught": _ended_by,
    "vllm-worker-died": _ended_by,
    "mpi-process-received-signal": _ended_by,
    "nccl-loopback-dialled": _only_over_nodes("NET003", None),
    "nccl-loopback-chosen": _unreached,
    "nccl-bridge-chosen": _unreached,
    "name-unresolvable": _name,
    "loopback-dialled": _loopback,
    "gloo-loopback-dialled": _loopback_refused,
    "loopback-fallback": _fell_back,
    "vllm-waits": _engine_waits,
    "gloo-mesh-timed-out": _unconnected,
    "nccl-connect-timed-out": _unconnected,
    "rendezvous-timed-out": _before_ranks("NET006"),
    "rendezvous-unreachable": _before_ranks("NET007"),
    "modified-in-place": _in_place,
    "gloo-mesh-refused": _refused_mesh,
    "loader-killed": _loader_killed,
    # torch.distributed.run's words for --nproc-per-node gpu; a script may say the same of its own accord.
    "launcher-without-device": lambda view, groups, context: "BKD001" if view.role != "rank" else "ERR001",
    "loader-gone": _loader_gone,
    # Said by the exception itself, not by a line that somebody may have printed.
    "variable-looked-up": lambda view, groups, context: "ENV001",
    "parameters-unused": _unused,
    "unused-indices": _unused,
    "unused-names": _unused,
}
