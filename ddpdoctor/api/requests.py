"""What a `CheckRequest` cannot ask for: impossible values, and options that contradict each other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from ddpdoctor.errors import UsageError
from ddpdoctor.evidence.stages import DEFAULT_STAGES, STAGES, STRATEGIES
from ddpdoctor.launch.request import (
    BACKENDS,
    MAX_NPROC,
    NPROC_WORDS,
    RDZV_BACKENDS,
    SWEEP_OPERATIONS,
    CheckRequest,
)
from ddpdoctor.text.suggest import closest

MAX_PORT = 65535
LAUNCHER_VARIABLES = (
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_SIZE",
)
"""Any of these says where or how several nodes meet, so the command line need not."""
NODE_RANK_VARIABLES = ("PET_NODE_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK")
"""Any of these says which node this is."""
HOST_PATTERN = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,253})$")
"""RFC 1123 host names, and the underscore that container platforms put into theirs."""


def require_valid(request: CheckRequest, environ: Mapping[str, str]) -> None:
    """Return only where the request can be tried. Messages name options as the command line spells them.

    Args:
        request: whose values have the right types.
        environ: where launcher variables are looked for.

    Raises:
        UsageError: the options contradict each other, or one has an impossible value.
    """
    _check_names(request)
    _check_world(request, environ)
    _check_stages(request)


def require_known_words(request: CheckRequest) -> None:
    """Return only where numbers are in range and words are known: the command line reads no others.

    Raises:
        UsageError: one is not.
    """
    if isinstance(request.nproc, str):
        _check_words("--nproc", [request.nproc], NPROC_WORDS)
    elif request.nproc is not None and not 1 <= request.nproc <= MAX_NPROC:
        raise UsageError(
            f"{request.nproc} ranks cannot be launched here; the range is 1 to {MAX_NPROC}", hint="--nproc 4"
        )
    for option, words, known in (
        ("--backend", [request.backend] if request.backend else [], BACKENDS),
        ("--rdzv-backend", [request.rdzv_backend] if request.rdzv_backend else [], RDZV_BACKENDS),
        ("--collectives", request.collectives, SWEEP_OPERATIONS),
        ("--strategy", request.strategies, STRATEGIES),
        ("--stage-timeout", [*request.limits], STAGES),
    ):
        _check_words(option, words, known)
    numbers = {
        "--nnodes": request.nnodes,
        "--iters": request.iterations,
        "--timeout": request.timeout,
        "--join-timeout": request.join_timeout,
        "--master-port": request.master_port,
    }
    for option, value in numbers.items():
        if value is not None and not 0 < value <= (MAX_PORT if option == "--master-port" else float("inf")):
            raise UsageError(
                f"{option}: {value} is out of range", hint=f"ddpdoctor check --help describes {option}"
            )


def choose_stages(
    only: Sequence[str], skip: Sequence[str], strategies: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the stages to run, in their order; that of the strategies only where it, or one of them, is asked for.

    Raises:
        UsageError: a word names no stage, both lists were given, or none is left.
    """
    if only and skip:
        raise UsageError(
            "use only one of --only and --skip",
            hint="--only selects the stages to run, --skip the stages to omit",
        )
    _check_words("--only", only, STAGES)
    _check_words("--skip", skip, STAGES)
    chosen = only or (STAGES if strategies else DEFAULT_STAGES)
    stages = tuple(stage for stage in STAGES if stage in chosen and stage not in skip)
    if not stages:
        raise UsageError("--skip leaves no stage to run")
    return stages


def _check_words(option: str, words: Sequence[str], known: Sequence[str]) -> None:
    for word in words:
        if word not in known:
            near = closest(word, known)
            raise UsageError(
                f"{option}: there is no {word!r}; choose from {', '.join(known)}",
                hint=f"{option} {near}" if near else None,
            )


def _check_names(request: CheckRequest) -> None:
    for option, value in (("--master-addr", request.master_addr), ("--local-addr", request.local_addr)):
        if value is not None:
            _check_host(option, value)
    if request.rdzv_endpoint is not None:
        split_endpoint(request.rdzv_endpoint)
    if request.rdzv_id is not None and not re.fullmatch(r"[\w.:@+-]{1,128}", request.rdzv_id):
        raise UsageError(f"--rdzv-id: {request.rdzv_id!r} is not a plain word of at most 128 characters")
    if request.run_dir is not None and not request.run_dir:
        raise UsageError("--run-dir: the directory has an empty name")
    if request.model is not None:
        _check_model(request.model)


def _check_model(text: str) -> None:
    module, _, factory = text.rpartition(":")
    named = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    if module and named and factory.isidentifier():
        return
    guess = (module or factory).removesuffix(".py").strip("./").replace("/", ".") or "pkg.mod"
    raise UsageError(
        f"--model: {text!r} is neither package.module:factory nor path/to/file.py:factory",
        context="the factory is a function that returns the module and a tuple of example inputs",
        hint=f"--model {guess}:{factory if module and factory.isidentifier() else 'factory'}",
    )


def _check_host(option: str, host: str) -> None:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if HOST_PATTERN.match(host) is None:
            raise UsageError(f"{option}: {host!r} is not a host name or address") from None


def split_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Return host and port of ``host``, ``host:port``, ``[v6]:port`` or a bare IPv6 address.

    Raises:
        UsageError: it has none of these forms.
    """
    option = "--rdzv-endpoint"
    bracketed = re.fullmatch(r"(\[[^\]]*\])(?::(.*))?", endpoint)
    if bracketed:
        host, port = bracketed.groups()
    elif endpoint.count(":") > 1:
        host, port = endpoint, None
    else:
        host, colon, rest = endpoint.partition(":")
        port = rest if colon else None
    if not host:
        raise UsageError(f"{option}: {endpoint!r} does not name a host", hint=f"{option} HOST:29500")
    _check_host(option, host)
    if port is None:
        return host.strip("[]"), None
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not 1 <= number <= MAX_PORT:
        raise UsageError(
            f"{option}: {port!r} is not a port; ports are 1 to {MAX_PORT}", hint=f"{option} {host}:29500"
        )
    return host.strip("[]"), number


def _check_world(request: CheckRequest, environ: Mapping[str, str]) -> None:
    nodes = request.nnodes or 1
    if request.node_rank is not None and request.node_rank >= nodes:
        raise UsageError(
            f"--node-rank {request.node_rank} is out of range for {nodes} node{'s' if nodes > 1 else ''}",
            context="node ranks count from 0",
            hint=f"--nnodes {request.node_rank + 1}" if nodes == 1 else f"--node-rank {nodes - 1}",
        )
    _check_meeting_point(request)
    if nodes == 1 or any(name in environ for name in LAUNCHER_VARIABLES):
        return
    if request.master_addr is None and request.rdzv_endpoint is None:
        raise UsageError(
            f"{nodes} nodes need a rendezvous endpoint", hint="--rdzv-backend c10d --rdzv-endpoint HOST:29500"
        )
    static = request.rdzv_backend == "static" or (
        request.rdzv_backend is None and request.master_addr is not None
    )
    if static and request.node_rank is None and not any(name in environ for name in NODE_RANK_VARIABLES):
        raise UsageError(
            "a static rendezvous needs the node rank",
            hint="--node-rank 0 on the master, 1 on the next …, or --rdzv-backend c10d",
        )


def _check_meeting_point(request: CheckRequest) -> None:
    if request.rdzv_endpoint is None:
        if request.rdzv_backend == "c10d" and (request.nnodes or 1) > 1 and request.master_addr is not None:
            raise UsageError(
                "--rdzv-backend c10d uses --rdzv-endpoint, not --master-addr",
                hint=f"--rdzv-endpoint {request.master_addr}:{request.master_port or 29500}",
            )
        return
    host, port = split_endpoint(request.rdzv_endpoint)
    for option, value, other in (
        ("--master-addr", request.master_addr, host),
        ("--master-port", request.master_port, port),
    ):
        if value is not None and other is not None and value != other:
            raise UsageError(
                f"{option} {value} contradicts --rdzv-endpoint {request.rdzv_endpoint}",
                hint=f"omit {option}",
            )


def _check_stages(request: CheckRequest) -> None:
    sweep = request.full or request.collectives or request.sizes or request.iterations
    if sweep and "bandwidth" not in request.stages:
        raise UsageError(
            "options of the bandwidth sweep were given, but the stage bandwidth is not selected",
            hint=_select("bandwidth", request),
        )
    if request.model is not None and "ddp" not in request.stages:
        raise UsageError(
            "--model was given, but the stage ddp, which uses it, is not selected",
            hint=_select("ddp", request),
        )
    if request.strategies and "strategies" not in request.stages:
        raise UsageError(
            "--strategy was given, but the stage strategies, which tries it, is not selected",
            hint=_select("strategies", request),
        )
    for stage in request.limits:
        if stage not in request.stages:
            raise UsageError(
                f"--stage-timeout {stage}=… was given, but that stage is not selected",
                hint=_select(stage, request),
            )


def _select(stage: str, request: CheckRequest) -> str:
    return f"--only {','.join((*request.stages, stage))}"
