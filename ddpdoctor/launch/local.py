"""The stages that need nobody else: facts of this node, smoke test, names and port."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from ddpdoctor import __version__
from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence import (
    BackendResult,
    Defect,
    Device,
    Evidence,
    NodeFacts,
    PortProbe,
    RankSet,
    Resolution,
    SmokeResult,
    StageRecord,
    decode,
)
from ddpdoctor.gather.deadline import Later
from ddpdoctor.gather.log_tail import read_last_words
from ddpdoctor.gather.network.dns import resolve
from ddpdoctor.gather.network.ports import probe_port
from ddpdoctor.gather.node import gather_node
from ddpdoctor.launch.interrupt import Interrupt
from ddpdoctor.launch.plan import Bound, Plan
from ddpdoctor.launch.processes import kill_processes
from ddpdoctor.launch.request import Progress
from ddpdoctor.launch.server import TorchServer
from ddpdoctor.launch.smoke import list_accelerators, run_smoke, smoke_file
from ddpdoctor.launch.wire import EventReader

IMPORT_LIMIT_S = 900.0
"""Seconds for importing torch and listing devices. A warm laptop takes 2 s, a cold network file system minutes; longer
is said to be longer, and nothing else."""
POLL_S = 0.005
RESOLVE_LIMIT_S = 5.0
"""The resolver's own default is 5 s a try (resolv.conf(5), timeout); longer is a fault worth naming."""


@dataclass(frozen=True, slots=True)
class LocalFindings:
    """What this node knows of itself before anybody meets."""

    evidence: Evidence
    facts: NodeFacts | None
    accelerators: tuple[str, ...] = ()
    """Devices that torch sees, e.g. ``cuda:0``."""
    has_nccl: bool = False
    cores: float = 1.0
    """Cores that may be used, by affinity and quota."""
    blocked: str | None = None
    """Why no world can be launched."""


class _Stage:
    """Measures one stage and makes its record."""

    def __init__(self, plan: Plan, name: str, origin: float) -> None:
        self._plan, self._name, self._origin = plan, name, origin
        self._begin = time.monotonic()

        self.bound = plan.bound(plan.limits[name], f"--stage-timeout {name}=", self._begin)

    def end(self, status: str, reason: str | None = None, by: Bound | None = None) -> StageRecord:
        now = time.monotonic()
        other = by is not None and by.option == "--timeout"
        return StageRecord(
            self._plan.node,
            self._name,
            status,
            reason,
            started_s=self._begin - self._origin,
            duration_s=now - self._begin,
            limit_s=by.limit_s if by is not None and other else self._plan.limits[self._name],
            limit_option="--timeout" if other else None,
        )

    def cut(self) -> StageRecord:
        """Return the record of a stage that its limit, or that of the command, has ended."""
        words = f"not finished after {time.monotonic() - self._begin:.3g} s"
        return self.end("cut", words, self.bound)


def look_at_node(
    plan: Plan, server: TorchServer, progress: Progress, interrupt: Interrupt, origin: float
) -> LocalFindings:
    """Go through the stages facts, smoke and the local half of tcp, while torch is being imported.

    Raises:
        DoctorError: torch cannot be imported, or is built without distributed.
    """
    records: list[StageRecord] = []
    facts = _gather_facts(plan, progress, records, origin) if plan.leads else None
    resolutions, ports, blocked = _look_at_names(plan, progress, records, origin)
    if server.pid is not None:
        progress.note("importing torch")
    torch_info = _ask_torch(plan, server, interrupt)
    if server.pid is not None and not torch_info and not interrupt.name:
        blocked = blocked or f"torch was still being imported when --timeout {plan.timeout:g} expired"
    devices = tuple(torch_info.get("devices", ()))
    smoke = _touch_devices(plan, server, progress, interrupt, records, devices, origin)
    blocked = blocked or _find_block(plan, torch_info, smoke)
    if facts is not None:
        facts = _complete_facts(facts, torch_info, devices)
    evidence = Evidence(
        launch=plan.launch,
        nodes=() if facts is None else (facts,),
        stages=tuple(records),
        smoke=smoke,
        defects=_read_defects(plan, devices or ("cpu",)),
        resolutions=resolutions,
        ports=ports,
        backends=_name_missing_backend(plan, torch_info, devices),
    )
    return LocalFindings(evidence, facts, devices, bool(torch_info.get("nccl")), _count_cores(facts), blocked)


def _gather_facts(
    plan: Plan, progress: Progress, records: list[StageRecord], origin: float
) -> NodeFacts | None:
    if not plan.runs("facts"):
        records.append(StageRecord(plan.node, "facts", "skipped", "not selected"))
        return None
    stage = _Stage(plan, "facts", origin)
    progress.stage("facts", plan.limits["facts"])
    later = Later(
        lambda: gather_node(
            plan.node,
            environ=os.environ,
            master_addr=plan.launch.master_addr,
            multi_node=plan.launch.nnodes > 1,
            model=plan.launch.model,
        )
    )
    try:
        facts = later.result(stage.bound.left())
    except TimeoutError:
        records.append(stage.cut())
        return None
    records.append(stage.end("passed"))
    return facts


def _look_at_names(
    plan: Plan, progress: Progress, records: list[StageRecord], origin: float
) -> tuple[tuple[Resolution, ...], tuple[PortProbe, ...], str | None]:
    """Resolve the master and, where this node will host it, look at the rendezvous port."""
    launch = plan.launch
    if not plan.runs("tcp") or not plan.leads or launch.master_addr is None or launch.master_port is None:
        reason = "not selected" if not plan.runs("tcp") else "done by local rank 0 for its node"
        records.append(StageRecord(plan.node, "tcp", "skipped", reason))
        return (), (), None
    stage = _Stage(plan, "tcp", origin)
    progress.stage("tcp", plan.limits["tcp"])
    found = resolve(plan.node, launch.master_addr, "master", limit_s=RESOLVE_LIMIT_S)
    own = resolve(plan.node, socket.gethostname(), "self", plan.node, limit_s=RESOLVE_LIMIT_S)
    ports: tuple[PortProbe, ...] = ()
    blocked = None
    if found.error is not None:
        blocked = f"{launch.master_addr} has no address: {found.error}"
    elif (plan.hosting and not plan.agent_store and launch.rdzv_backend != "c10d") or (
        launch.nnodes == 1 and not plan.agent_store
    ):
        probe = probe_port(plan.node, launch.master_addr, launch.master_port)
        ports = (probe,)
        if probe.status not in ("free", "unassignable"):
            blocked = f"cannot listen on port {launch.master_port}: {probe.status}"
    records.append(stage.end("failed" if blocked else "passed", blocked))
    return (found, own), ports, blocked


def _ask_torch(plan: Plan, server: TorchServer, interrupt: Interrupt) -> dict[str, Any]:
    """Return what torch says of itself; empty when no stage needs torch."""
    if server.pid is None:
        return {}
    reader = EventReader(smoke_file(plan.workdir, "list"))
    process = server.process(list_accelerators, plan.workdir)
    bound = plan.bound(IMPORT_LIMIT_S, "")
    try:
        _start(process, bound, interrupt)
    except TimeoutError:
        return {} if interrupt.name else _say_unimported(bound, server)
    except (EOFError, OSError) as problem:
        if interrupt.name:
            return {}
        text = "the process that imports it exited" if isinstance(problem, EOFError) else str(problem)
        raise _cannot_import(plan, text or type(problem).__name__) from problem
    while bound.left() and not interrupt.name:
        ended = not process.is_alive()  # asked first: what it has written until then is read below
        for event in reader.read():
            if event["event"] == "torch":
                if not event["distributed"]:
                    raise DoctorError(
                        f"torch {event['version']} is built without torch.distributed",
                        hint="python -m pip install torch  (the builds of pytorch.org have it)",
                    )
                return event
            if event["event"] == "broken":
                raise _cannot_import(plan, str(event["text"]))
        if ended:
            raise _cannot_import(plan, f"the process that imported it exited with {process.exitcode}")
        time.sleep(POLL_S)
    return {} if interrupt.name else _say_unimported(bound, server)


def _start(process: Any, bound: Bound, interrupt: Interrupt) -> None:
    """Start a process, which the forkserver does once it has imported torch.

    Raises:
        TimeoutError: it has not within the bound, or the user has interrupted it.
        EOFError, OSError: the forkserver is gone.
    """
    starting = Later(process.start)
    while not interrupt.name:
        try:
            starting.result(min(POLL_S, bound.left()))
            return
        except TimeoutError:
            if not bound.left():
                raise
    raise TimeoutError


def _say_unimported(bound: Bound, server: TorchServer) -> dict[str, Any]:
    """Return nothing, where the command's own limit ended the wait; else say how long it was, and no more.

    Raises:
        DoctorError: after `IMPORT_LIMIT_S`.
    """
    if bound.option:
        return {}
    raise DoctorError(
        f"torch was not imported within {IMPORT_LIMIT_S:g} s",
        context=f"process {server.pid} is {_describe_state(server.pid)}",
        hint='time python -X importtime -c "import torch"',
    )


def _describe_state(pid: int | None) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.Error:
        return "gone"


def _cannot_import(plan: Plan, text: str) -> DoctorError:
    words = read_last_words(smoke_file(plan.workdir, "list").with_name("server.log"))
    context = words.splitlines()[-1] if words else text
    return DoctorError(
        "torch is installed but cannot be imported", context=context, hint='python -c "import torch"'
    )


def _touch_devices(
    plan: Plan,
    server: TorchServer,
    progress: Progress,
    interrupt: Interrupt,
    records: list[StageRecord],
    devices: tuple[str, ...],
    origin: float,
) -> tuple[SmokeResult, ...]:
    if not plan.runs("smoke") or not plan.leads:
        reason = "not selected" if not plan.runs("smoke") else "done by local rank 0 for its node"
        records.append(StageRecord(plan.node, "smoke", "skipped", reason))
        return ()
    stage, limit = _Stage(plan, "smoke", origin), plan.limits["smoke"]
    over = _why_over(stage.bound, interrupt)
    if over is not None:  # torch may not be there yet, and no process starts without it
        records.append(stage.end("unreached", over))
        return ()
    progress.stage("smoke", limit)
    names = devices or ("cpu",)
    processes = {name: server.process(run_smoke, plan.workdir, plan.node, name) for name in names}
    for process in processes.values():
        process.start()
    while any(p.is_alive() for p in processes.values()) and stage.bound.left() and not interrupt.name:
        time.sleep(POLL_S)
    alive = any(p.is_alive() for p in processes.values())
    early = alive and not interrupt.name and stage.bound.option == "--timeout"
    results: list[SmokeResult] = []
    for name, process in processes.items():
        ended = early or interrupt.name is not None
        results.extend(_read_smoke(plan, name, process, limit, interrupted=ended))
    bad = [r for r in results if not r.ok]
    if early:
        records.append(stage.cut())
    elif interrupt.name:
        records.append(stage.end("unreached", f"interrupted by {interrupt.name}"))
    else:
        records.append(stage.end("failed" if bad else "passed", bad[0].error if bad else None))
    return tuple(results)


def _why_over(bound: Bound, interrupt: Interrupt) -> str | None:
    if interrupt.name:
        return f"interrupted by {interrupt.name}"
    return None if bound.left() else f"{bound.describe()} expired before it"


def _read_smoke(plan: Plan, name: str, process: Any, limit: float, *, interrupted: bool) -> list[SmokeResult]:
    alive = process.is_alive()
    killable = True
    if alive:
        killable = not kill_processes([psutil.Process(process.pid)])
    events = EventReader(smoke_file(plan.workdir, name)).read()
    results = [decode(SmokeResult, e["data"]) for e in events if e["event"] == "row" and e["kind"] == "smoke"]
    if alive and not interrupted:
        text = f"no answer within {limit:g} s" + ("" if killable else "; the process cannot even be killed")
        results.append(SmokeResult(plan.node, name, False, limit, text, killable=killable))
    elif not alive and process.exitcode:
        results.append(
            SmokeResult(plan.node, name, False, None, f"the process ended with {process.exitcode}")
        )
    return results


def _name_missing_backend(
    plan: Plan, info: dict[str, Any], devices: tuple[str, ...]
) -> tuple[BackendResult, ...]:
    """Say that the backend asked for is not there, where that is known without a world."""
    asked = plan.launch.backend_asked
    if not info or asked not in ("nccl", "gloo"):
        return ()
    if not info[asked]:
        return (BackendResult(asked, built=False, asked=True, reason=f"this PyTorch build lacks {asked}"),)
    if asked == "nccl" and not devices:
        reason = "torch sees no GPU on this node"
        return (
            BackendResult("nccl", built=True, device="cuda", device_present=False, asked=True, reason=reason),
        )
    return ()


def _read_defects(plan: Plan, devices: Sequence[str]) -> tuple[Defect, ...]:
    events = [event for name in devices for event in EventReader(smoke_file(plan.workdir, name)).read()]
    return tuple(decode(Defect, e["data"]) for e in events if e["event"] == "row" and e["kind"] == "defects")


def _find_block(plan: Plan, info: dict[str, Any], smoke: tuple[SmokeResult, ...]) -> str | None:
    missing = _name_missing_backend(plan, info, tuple(info.get("devices", ())))
    if missing:
        return f"backend {missing[0].backend}: {missing[0].reason}"
    stuck = [r.device for r in smoke if not r.ok and not r.killable]
    return f"{', '.join(stuck)} does not respond" if stuck else None


def _complete_facts(facts: NodeFacts, info: dict[str, Any], devices: tuple[str, ...]) -> NodeFacts:
    """Add what torch knows to what the system knows."""
    versions = {**facts.versions, "ddpdoctor": __version__}
    for key, name in (("version", "torch"), ("cuda", "cuda"), ("hip", "hip")):
        if info.get(key):
            versions[name] = str(info[key])
    known = facts.devices or tuple(
        Device(index, kind=name.split(":")[0]) for index, name in enumerate(devices)
    )
    return dataclasses.replace(facts, versions=versions, devices=known)


def _count_cores(facts: NodeFacts | None) -> float:
    if facts is None or facts.cpus is None:
        return float(os.cpu_count() or 1)
    return min(float(facts.cpus.affinity), facts.cpus.quota or float("inf"))


def world_ranks(plan: Plan) -> RankSet:
    """Return the ranks of this node."""
    return RankSet(range(plan.first_rank, plan.first_rank + plan.launch.nproc))
