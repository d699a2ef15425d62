"""``ddpdoctor check``: options, and the way from a launch to a verdict."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.checking import judge, launch, prepare
from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.option_values import (
    parse_backend,
    parse_nnodes,
    parse_node_rank,
    parse_nproc,
    parse_operations,
    parse_port,
    parse_rdzv_backend,
    parse_sizes,
    parse_stage_limit,
    parse_stages,
    parse_strategies,
)
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.errors import EXIT_FAILED, EXIT_FINDINGS, EXIT_INTERRUPTED, EXIT_OK, OutputError

if TYPE_CHECKING:
    from ddpdoctor.launch.ground import Ground
    from ddpdoctor.launch.request import CheckOutcome, CheckRequest
    from ddpdoctor.report.model import Report
    from ddpdoctor.report.registry import RendererRegistry

RUNS = "ddpdoctor-runs"
"""Where runs are kept, in the working directory."""

EXAMPLES = (
    ("ddpdoctor check --nproc 4", "four ranks on this machine"),
    ("ddpdoctor check --nproc 4 --html report.html", "with an HTML report"),
    ("ddpdoctor check --nproc 2 --model pkg.mod:factory", "your own model: lists unused parameters by name"),
    ("ddpdoctor check --only facts,tcp", "no ranks are launched"),
    ("ddpdoctor check --nproc 8 --full --sizes 1K-256M", "the long bandwidth sweep"),
    (
        "ddpdoctor check --nnodes 2 --nproc 8 --rdzv-backend c10d --rdzv-endpoint node-a:29500",
        "run on each of two nodes",
    ),
    ("torchrun --nproc-per-node 4 -m ddpdoctor check", "under your own launcher"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``check``."""
    _add_world_options(parser.add_argument_group("job size and rendezvous (same options as torchrun)"))
    _add_stage_options(parser.add_argument_group("what to test"))
    _add_bandwidth_options(parser.add_argument_group("bandwidth"))
    _add_limit_options(parser.add_argument_group("limits"))
    common.add_output_options(parser)
    common.add_selection_options(parser)
    common.add_fail_option(parser)
    common.add_verbosity_options(parser)


def _add_world_options(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "--nproc",
        "--nproc-per-node",
        type=parse_nproc,
        metavar="N",
        help="ranks on this node: 1 to 1024, auto, gpu or cpu",
    )
    add_option(
        group, "--nnodes", type=parse_nnodes, metavar="N", help="nodes; start the same command on each"
    )
    add_option(group, "--node-rank", type=parse_node_rank, metavar="I", help="this node's rank, from 0")
    add_option(group, "--master-addr", metavar="HOST", help="rendezvous host, with --rdzv-backend static")
    add_option(group, "--master-port", type=parse_port, metavar="PORT", help="rendezvous port (29500)")
    add_option(group, "--rdzv-backend", type=parse_rdzv_backend, metavar="NAME", help="c10d or static")
    add_option(group, "--rdzv-endpoint", metavar="HOST[:PORT]", help="host:port of the rendezvous")
    add_option(group, "--rdzv-id", metavar="ID", help="ID of this launch, the same on all nodes")
    add_option(group, "--local-addr", metavar="ADDR", help="address of this node for the other nodes")


def _add_stage_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--backend",
        type=parse_backend,
        metavar="NAME",
        help="gloo, nccl, mpi, ucc or xccl; by default chosen from the devices",
    )
    group.add_argument(
        "--model", metavar="PKG.MOD:FACTORY", help="function that returns your module and example inputs"
    )
    group.add_argument(
        "--strategy",
        action="extend",
        type=parse_strategies,
        metavar="S,...",
        help="also try fsdp2 (fully_shard), tp, pp and dcp: tensor and pipeline parallelism, distributed checkpoints",
    )
    stages = "facts, smoke, tcp, rendezvous, backends, collectives, ddp, bandwidth, strategies"
    group.add_argument(
        "--only", action="extend", type=parse_stages, metavar="S,...", help=f"run only these stages: {stages}"
    )
    group.add_argument(
        "--skip", action="extend", type=parse_stages, metavar="S,...", help="skip these stages"
    )


def _add_bandwidth_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--full", action="store_true", help="more operations, more sizes, more iterations")
    group.add_argument(
        "--collectives",
        action="extend",
        type=parse_operations,
        metavar="OP,...",
        help="operations, e.g. all_reduce,broadcast",
    )
    group.add_argument(
        "--sizes",
        type=parse_sizes,
        metavar="B,...",
        help="total bytes as in nccl-tests: 1K,4M or a doubling range 8-64M",
    )
    group.add_argument("--iters", type=common.parse_count, metavar="N", help="timed iterations per size")


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "--join-timeout",
        type=common.parse_seconds,
        metavar="S",
        help="seconds to wait for the other nodes (60)",
    )
    add_option(
        group,
        "--stage-timeout",
        action="append",
        type=parse_stage_limit,
        metavar="STAGE=S",
        help="time limit of a stage in seconds; repeatable",
    )
    group.add_argument(
        "--timeout", type=common.parse_seconds, metavar="S", help="time limit of the whole command in seconds"
    )
    add_option(group, "--run-dir", metavar="DIR", help="directory for the reports of a multi-node run")


def run(options: argparse.Namespace) -> int:
    """Launch, judge, show; torch is imported meanwhile from the beginning on."""
    with prepare(getattr(options, "only", ())) as ground:
        return _run(options, ground)


def _run(options: argparse.Namespace, ground: Ground) -> int:
    from ddpdoctor.cli.arguments.request import read_request
    from ddpdoctor.cli.arguments.select import choose_selection
    from ddpdoctor.cli.output.display import Display, reserved_stdout
    from ddpdoctor.cli.output.waiting import make_progress
    from ddpdoctor.cli.outputs import deliver, render_options, require_writable
    from ddpdoctor.plugins import load_plugins

    request = read_request(options)
    plugins = load_plugins()
    selection = choose_selection(options, {code: page.name for code, page in plugins.checks.pages.items()})
    outputs = common.pair_outputs(options, plugins.renderers.names)
    if (request.nnodes or 1) == 1:  # of several nodes one writes them
        require_writable(options)
    level = common.verbosity(options)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    progress = make_progress(sys.stderr, color=not getattr(options, "no_color", False), quiet=level < 0)
    try:
        with reserved_stdout():
            outcome = launch(request, progress, plugins.gatherers, ground)
    finally:
        progress.close()
    if not outcome.spokesman:
        return EXIT_OK
    with reserved_stdout():
        report = judge(outcome, plugins, selection, options.invocation)
    shown = render_options(display, verbosity=level, pages=plugins.checks.pages)
    folder = run_folder(request, outcome)
    delivered = EXIT_OK
    if outcome.prints:
        delivered = deliver(report, [*outputs, *run_outputs(folder, outcome)], plugins.renderers, shown)
    own = report
    if folder is not None and outcome.own is not None:
        own = judge(
            dataclasses.replace(outcome, evidence=outcome.own), plugins, selection, options.invocation
        )
    kept = keep_own(folder, outcome, own, plugins.renderers)
    return delivered or kept or exit_code(report, getattr(options, "fail_on", "error"))


def run_folder(request: CheckRequest, outcome: CheckOutcome) -> Path | None:
    """Return where a run on several nodes, or with --run-dir, keeps its files; None without either."""
    launch = outcome.evidence.launch
    if request.run_dir is None and launch.nnodes < 2:
        return None
    folder = Path(request.run_dir or Path(RUNS, launch.rdzv_id or "none"))
    # Where it cannot be made, writing the files says why and the text is still printed.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_outputs(folder: Path | None, outcome: CheckOutcome) -> list[common.Output]:
    """Return the merged report, which the hosting node writes."""
    if folder is None or not outcome.hosting:
        return []
    return [common.Output(name, str(folder / f"report.{name}")) for name in ("json", "html")]


def keep_own(folder: Path | None, outcome: CheckOutcome, own: Report, renderers: RendererRegistry) -> int:
    """Write what this node saw, whatever became of the others; return an exit code."""
    from ddpdoctor.cli.output.display import Display
    from ddpdoctor.cli.outputs import render, render_options, write_file

    if folder is None:
        return EXIT_OK
    try:
        text = render(own, "json", renderers, render_options(Display.of(None)))
        # A name tells nodes without a number apart on a file system that they share.
        name = socket.gethostname() if outcome.node is None else outcome.node
        write_file(folder / f"node-{name}.json", text)
    except OutputError as problem:
        print(problem.render(), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def exit_code(report: Report, fail_on: str) -> int:
    """Return the exit code that a report deserves (design: Exit codes).

    A verdict that could not be reached is a failure, not a success: a gate that asks for exit 0 must not open
    because nobody could look.
    """
    if report.interrupted is not None:
        return EXIT_INTERRUPTED
    if report.verdict.status in ("error", "unknown") or report.verdict.looked == 0:
        return EXIT_FAILED
    counted = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[fail_on]
    found = any(f.state == "active" and f.severity in counted for f in report.findings)
    if found:
        return EXIT_FINDINGS
    # A warning makes the verdict "problems", but does not say why the rest was not seen, as an error may.
    told = any(f.state == "active" and f.severity == "error" for f in report.findings)
    blind = any(row.required and row.status in ("unknown", "error") for row in report.checks)
    return EXIT_FAILED if blind and not told else EXIT_OK
