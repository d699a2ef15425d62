"""A harness for those who write checks: make evidence, run one check on it, say what is expected.

The built-in checks are tested with it too. It needs neither torch nor pytest::

    from ddpdoctor.testing import assert_finds, assert_passes, make_world

    def test_full_disk_is_found() -> None:
        world = make_world(nodes=2, nproc=4, extra={"my-dist/disk": {"1": {"free": 0}}})
        finding = assert_finds(check_disk, world, code="X-my-dist-001")
        assert finding.nodes == ("node-1",)

A world as `make_world` gives it is healthy: no built-in check finds anything in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ddpdoctor.evidence import (
    STAGES,
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Cpus,
    Evidence,
    Experiment,
    HostMatch,
    InitResult,
    Interface,
    Launch,
    Limits,
    Link,
    NodeFacts,
    PairRow,
    PortProbe,
    RankFacts,
    RankSet,
    Rendezvous,
    Resolution,
    SharedMemory,
    SmokeResult,
    StageRecord,
)
from ddpdoctor.evidence.gatherers import GathererRegistry, run_gatherers
from ddpdoctor.judge.catalogue import PAGE_SECTIONS
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.registry import Check, Function, Registry
from ddpdoctor.judge.rules import LintRule
from ddpdoctor.judge.runner import CheckRow, run_checks
from ddpdoctor.report.build import build_report
from ddpdoctor.report.model import Report
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.source.reading import parse_script

OPERATIONS = tuple(
    "send_recv isend_irecv batch_isend_irecv broadcast scatter gather reduce all_reduce all_gather "
    "all_gather_into_tensor reduce_scatter all_to_all barrier objects".split()
)
"""Operations of a made-up world: those that `check` tries."""
SIZES = (1 << 10, 1 << 20, 1 << 26)
"""Sizes of its sweep in bytes: a small, a middle and a large one."""
ALL_LINKS = 64
"""Nodes up to which all pairs are connected, as in `check`; more get a ring."""
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
"""When made-up reports began, so that two of them are equal."""


def make_world(nodes: int | Sequence[NodeFacts] = 1, nproc: int = 2, **changes: Any) -> Evidence:
    """Return the evidence of a healthy world of CPU ranks that talk over gloo.

    Args:
        nodes: number of hosts, called ``node-0``, ``node-1`` and so on, or their facts as `make_node` gives them.
        nproc: ranks on each.
        changes: fields of `Evidence` to put in place of the made-up ones, e.g. ``bandwidth=()``.
    """
    hosts = tuple(make_node(node) for node in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
    size = len(hosts) * nproc
    everyone = RankSet.span(size)
    launch = Launch(
        nnodes=len(hosts),
        nproc=nproc,
        world_size=size,
        node_rank=0,
        master_addr=hosts[0].host if len(hosts) > 1 else "127.0.0.1",
        master_port=29500,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{hosts[0].host}:29500" if len(hosts) > 1 else "127.0.0.1:29500",
        rdzv_id="made-up",
        stages=STAGES,
    )
    evidence = Evidence(
        launch=launch,
        nodes=hosts,
        ranks=tuple(make_rank(rank, nproc, size, host=hosts[rank // nproc].host) for rank in range(size)),
        stages=tuple(_make_stage(node, stage, nproc) for node in range(len(hosts)) for stage in STAGES),
        **_make_network(len(hosts), size, launch),
        **_make_results(everyone, len(hosts)),
    )
    return replace(evidence, **changes)


def _address(node: int) -> str:
    return f"10.0.{node // 250}.{node % 250 + 1}"


def make_node(node: int, **changes: Any) -> NodeFacts:
    """Return the facts of one healthy host; ``changes`` are fields of `NodeFacts`."""
    address = _address(node)
    facts = NodeFacts(
        node=node,
        host=f"node-{node}",
        fqdn=f"node-{node}",
        boot_id=f"boot-{node}",
        name_addresses=(address,),
        advertised=address,
        advertised_interface="eth0",
        route_address=address,
        route_interface="eth0",
        interfaces=(
            Interface("lo", ("127.0.0.1",), loopback=True, mtu=65536),
            Interface("eth0", (address,), mtu=1500, speed_mbps=10000),
        ),
        ephemeral_ports=(32768, 60999),
        cpus=Cpus(logical=64, affinity=64),
        memory_total=256 << 30,
        shared_memory=SharedMemory(total=128 << 30, free=128 << 30),
        limits=Limits(open_files=1 << 20, open_files_hard=1 << 20),
        versions={"python": "3.11.9", "torch": "2.13.0"},
        clock_offset_s=0.0,
        clock_error_s=0.001,
        rendezvous_files=(),
    )
    return replace(facts, **changes)


def make_rank(rank: int, nproc: int, world_size: int, **changes: Any) -> RankFacts:
    """Return one healthy rank; ``changes`` are fields of `RankFacts`."""
    node = rank // nproc
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % nproc),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
    }
    facts = RankFacts(
        rank=rank,
        local_rank=rank % nproc,
        node=node,
        host=f"node-{node}",
        pid=1000 + rank,
        world_size=world_size,
        variables=variables,
        threads=max(1, 64 // nproc),
        versions={"python": "3.11.9", "torch": "2.13.0"},
    )
    return replace(facts, **changes)


def _make_stage(node: int, stage: str, nproc: int) -> StageRecord:
    local = stage in ("facts", "smoke", "tcp")
    ranks = RankSet() if local else RankSet(range(node * nproc, (node + 1) * nproc))
    return StageRecord(
        node,
        stage,
        "passed",
        started_s=0.1 * STAGES.index(stage),
        duration_s=0.1,
        limit_s=30.0,
        finished=ranks,
    )


def _make_network(nodes: int, size: int, launch: Launch) -> dict[str, Any]:
    hosts = range(nodes) if nodes > 1 else ()
    pairs = [
        (a, b)
        for a in hosts
        for b in hosts
        if a != b and (nodes <= ALL_LINKS or (b - a) % nodes in (1, nodes - 1))
    ]
    endpoint = launch.rdzv_endpoint or ""
    return {
        "resolutions": (
            *(
                Resolution(node, launch.master_addr or "", "master", addresses=("10.0.0.1",))
                for node in hosts
            ),
            *(Resolution(a, f"node-{b}", "peer", of_node=b, addresses=(_address(b),)) for a, b in pairs),
        ),
        "ports": (PortProbe(0, launch.master_port or 0, "free"),),
        "links": tuple(
            Link(a, b, kind, True, seconds=0.0002) for a, b in pairs for kind in ("ephemeral", "large")
        ),
        "host_matches": tuple(
            HostMatch(node, endpoint, matches=node == 0, names=(f"node-{node}",)) for node in range(nodes)
        ),
        "rendezvous": tuple(
            Rendezvous(
                node, "c10d", endpoint, nodes, tuple(range(nodes)), size, RankSet.span(size), 0.2, 60.0
            )
            for node in range(nodes)
        ),
    }


def _make_results(everyone: RankSet, nodes: int) -> dict[str, Any]:
    cases = [("float32", 1000), ("int64", 7)]
    experiments = (
        "gradient-mean",
        "replicas-equal",
        "autocast",
        "grad-scaler",
        "no-sync",
        "unused-named",
        "checkpoint",
    )
    return {
        "backends": (
            BackendResult("gloo", True, "cpu", asked=True, group=everyone, collective=everyone),
            *(BackendResult(name, False, reason="not built") for name in ("nccl", "mpi", "ucc", "xccl")),
        ),
        "smoke": tuple(SmokeResult(node, "cpu", True, seconds=0.01) for node in range(nodes)),
        "collectives": tuple(
            CollectiveCase(op, "gloo", dtype, count, "sum" if "reduce" in op else None, group, everyone)
            for op in OPERATIONS
            for dtype, count in cases
            for group in ("world", "sub-group")
        ),
        "initialisations": tuple(InitResult(method, everyone) for method in ("env", "tcp", "file")),
        "experiments": tuple(Experiment(name, everyone) for name in experiments),
        "bandwidth": tuple(_make_bandwidth(size, len(everyone)) for size in SIZES),
        "baselines": (Baseline(0, "loopback-copy", 4.4),),
        "pairs": (*_make_pairs(len(everyone), "rank"), *_make_pairs(nodes, "node")),
    }


def _make_pairs(count: int, level: str) -> list[PairRow]:
    """Each sends to its two neighbours of a ring, all at one speed."""
    ring = [(a, (a + step) % count) for a in range(count) for step in (1, -1)]
    pairs = dict.fromkeys((a, b) for a, b in ring if a != b)
    return [PairRow(a, b, level, bytes=1 << 22, seconds=(1 << 22) / 1e9, bandwidth=1.0) for a, b in pairs]


def _make_bandwidth(size: int, ranks: int) -> BandwidthRow:
    """One row at 1.2 GB/s and 60 microseconds, what gloo gives over loopback."""
    seconds = 60e-6 + size / 1.2e9
    factor = 2 * (ranks - 1) / ranks
    algbw = size / seconds / 1e9
    busbw = algbw * factor
    return BandwidthRow(
        op="all_reduce",
        backend="gloo",
        dtype="float32",
        bytes=size,
        ranks=ranks,
        iterations=5,
        seconds=seconds,
        seconds_min=seconds * 0.9,
        seconds_max=seconds * 1.1,
        algbw=algbw,
        busbw=busbw,
        busbw_min=busbw * 0.9,
        busbw_max=busbw * 1.1,
        correct=True,
    )


def read_source(text: str, *rules: LintRule, name: str = "train.py") -> Evidence:
    """Return the evidence that `lint` has of one script, read with some rules.

    Args:
        text: the script.
        rules: declared with ``@lint_rule``.
        name: of the script.

    Raises:
        AssertionError: the script cannot be read, or a rule failed.
    """
    (file,) = judge_scripts([parse_script(text.encode(), name)], rules)
    if file.problem or file.skipped:
        raise AssertionError(f"{name} was not read: {file.problem or ', '.join(file.skipped)}")
    return Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"), sources=(file,))


def collect_checks(function: Function, *, source: str = "ddpdoctor") -> tuple[Check, ...]:
    """Return the checks that a function declared with ``@check`` makes."""
    registry = Registry()
    registry.source = source
    registry.add(function)
    return registry.checks


def judge_one(
    function: Function, evidence: Evidence, *, id: str | None = None
) -> tuple[list[CheckRow], list[Finding]]:
    """Run one declared function as the program runs it: needs, limits and exceptions included.

    Args:
        function: declared with ``@check``.
        evidence: what it is to judge.
        id: only this row of a check with variants.
    """
    chosen = [each for each in collect_checks(function) if id is None or each.id == id]
    if not chosen:
        raise AssertionError(f"no check with id {id}")
    return run_checks(chosen, evidence)


def assert_finds(
    function: Function,
    evidence: Evidence,
    *,
    code: str | None = None,
    id: str | None = None,
    severity: str | None = None,
) -> Finding:
    """Assert that exactly one thing is found, that it can be shown, and return it.

    Raises:
        AssertionError: nothing or more is found, or the finding lacks a message or a fix.
    """
    rows, findings = judge_one(function, evidence, id=id)
    if len(findings) != 1:
        shown = [finding.message for finding in findings]
        raise AssertionError(f"found {len(findings)} things, not one: {shown or _states(rows)}")
    found = findings[0]
    if not found.message.strip():
        raise AssertionError("the finding has no message")
    if found.severity != "info" and not found.fix:
        raise AssertionError(f"the finding does not say what to do: {found.message}")
    if code is not None and found.code != code:
        raise AssertionError(f"found {found.code}, not {code}")
    if severity is not None and found.severity != severity:
        raise AssertionError(f"severity is {found.severity}, not {severity}")
    if Finding.from_dict(found.to_dict()) != found:
        raise AssertionError("the finding does not survive being saved; are its details plain data?")
    return found


def assert_passes(function: Function, evidence: Evidence, *, id: str | None = None) -> None:
    """Assert that every row of the check looked and found nothing.

    Raises:
        AssertionError: a row did not pass.
    """
    rows, findings = judge_one(function, evidence, id=id)
    if findings or any(row.status != "pass" for row in rows):
        raise AssertionError(f"did not pass: {_states(rows)}")


def assert_status(function: Function, evidence: Evidence, status: str, *, id: str | None = None) -> str:
    """Assert that every row ends with ``status`` (skipped, unknown, error …) and return the first reason.

    Raises:
        AssertionError: a row ends otherwise, or one that did not pass gives no reason.
    """
    rows, _ = judge_one(function, evidence, id=id)
    if any(row.status != status for row in rows):
        raise AssertionError(f"not {status}: {_states(rows)}")
    if status != "pass" and not all(row.reason for row in rows):
        raise AssertionError("a row gives no reason")
    return rows[0].reason or ""


def _states(rows: list[CheckRow]) -> str:
    return ", ".join(f"{row.id} {row.status}" + (f" ({row.reason})" if row.reason else "") for row in rows)


def assert_page(function: Function) -> None:
    """Assert that the page of every code of a check has a title and text under all headings.

    Raises:
        AssertionError: something is missing; it says what.
    """
    for page in {page.code: page for each in collect_checks(function) for page in each.pages}.values():
        sections = page.sections()
        missing = [heading for heading in PAGE_SECTIONS if not sections.get(heading)]
        if missing:
            raise AssertionError(f"the page of {page.code} lacks {', '.join(missing)}")
        if not page.title.strip() or not page.since.strip():
            raise AssertionError(f"{page.code} has no title or does not say since when")


def gather(register: Callable[[GathererRegistry], object], *, source: str, node: int = 0) -> dict[str, Any]:
    """Run the gatherers that ``register`` adds on a made-up node and return what lands in `Evidence.extra`.

    Raises:
        AssertionError: one of them raised, hung or returned what JSON cannot hold.
    """
    registry = GathererRegistry()
    registry.source = source
    register(registry)
    extra, failures = run_gatherers(registry, make_node(node))
    if failures:
        raise AssertionError("; ".join(f"{each.name}: {each.text}" for each in failures))
    return extra


def make_report(evidence: Evidence, *functions: Function, **changes: Any) -> Report:
    """Return the report of some checks over evidence, to try a renderer on.

    Args:
        evidence: what the checks judge.
        functions: declared with ``@check``.
        changes: arguments of `ddpdoctor.report.build.build_report`.
    """
    registry = Registry()
    registry.add(*functions)
    settings: dict[str, Any] = {
        "started_at": STARTED,
        "duration_s": 2.5,
        "invocation": ["ddpdoctor", "check"],
    }
    return build_report(evidence, registry=registry, **{**settings, **changes})
