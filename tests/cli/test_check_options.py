from __future__ import annotations

import pytest

from ddpdoctor.cli.arguments.option_values import parse_sizes
from ddpdoctor.evidence import DEFAULT_STAGES, STAGES
from tests.cli.conftest import Run, Stage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc", "0"], "0 ranks cannot be launched here; the range is 1 to 1024"),
        (["--nproc", "-1"], "-1 ranks cannot be launched"),
        (["--nproc=-1"], "-1 ranks cannot be launched"),
        (["--nproc", "10000"], "10000 ranks cannot be launched"),
        (["--nproc", "four"], "'four' is neither a number nor auto, gpu, cpu"),
        (["--nproc", "1.5"], "'1.5' is neither"),
        (["--nproc", ""], "'' is neither"),
        (["--nproc"], "expected one argument"),
        (["--nnodes", "0"], "'0' is not a number of nodes"),
        (["--nnodes", "1:4"], "elastic range"),
        (["--master-port", "99999"], "'99999' is not a port; ports are 1 to 65535"),
        (["--master-port", "0"], "'0' is not a port"),
        (["--master-port", "http"], "'http' is not a port"),
        (["--rdzv-endpoint", "host:99999"], "'99999' is not a port"),
        (["--rdzv-endpoint", ":29500"], "does not name a host"),
        (["--rdzv-endpoint", "ho st:29500"], "not a host name"),
        (["--master-addr", "-x y"], "not a host name"),
        (["--rdzv-backend", "c10"], "there is no rendezvous backend (for check) 'c10'"),
        (["--backend", "glo"], "there is no backend 'glo'"),
        (["--only", "fact"], "there is no stage 'fact'"),
        (["--skip", "bandwith"], "there is no stage 'bandwith'"),
        (["--only", "facts", "--skip", "ddp"], "use only one of --only and --skip"),
        (["--skip", ",".join(STAGES)], "leaves no stage"),
        (["--stage-timeout", "ddp"], "not of the form STAGE=SECONDS"),
        (["--stage-timeout", "dpd=3"], "there is no stage 'dpd'"),
        (["--stage-timeout", "ddp=0"], "not a time greater than 0"),
        (["--timeout", "soon"], "'soon' is not a time greater than 0"),
        (["--timeout", "inf"], "not a time greater than 0"),
        (["--join-timeout", "-5"], "not a time greater than 0"),
        (["--sizes", "4X"], "'4X' is not a size"),
        (["--sizes", "64M-8"], "is an empty range"),
        (["--iters", "0"], "not a whole number of at least 1"),
        (["--collectives", "all_reduse"], "there is no operation 'all_reduse'"),
        (["--model", "mymodel"], "neither package.module:factory nor path/to/file.py:factory"),
        (["--model", "model.py:"], "neither package.module:factory nor path/to/file.py:factory"),
        (["--node-rank", "1"], "--node-rank 1 is out of range for 1 node"),
        (
            ["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"],
            "--node-rank 2 is out of range for 2 nodes",
        ),
        (["--nnodes", "2"], "2 nodes need a rendezvous endpoint"),
        (["--nnodes", "2", "--master-addr", "a"], "needs the node rank"),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "--master-addr", "a"], "uses --rdzv-endpoint"),
        (["--rdzv-endpoint", "a:1", "--master-port", "2"], "--master-port 2 contradicts"),
        (["--rdzv-endpoint", "a:1", "--master-addr", "b"], "--master-addr b contradicts"),
        (["--only", "facts", "--full"], "stage bandwidth is not selected"),
        (["--only", "facts", "--model", "a:b"], "stage ddp, which uses it, is not selected"),
        (["--only", "facts", "--stage-timeout", "ddp=3"], "that stage is not selected"),
        (["--rdzv-id", "a b"], "not a plain word"),
        (["--run-dir", ""], "empty name"),
        (["--format", "jsn"], "there is no format 'jsn'"),
        (["--format", "json", "--format", "text"], "would both be written to stdout"),
        (["--json", "-", "--html", "-"], "would both be written to stdout"),
        (["--json", "a", "--html", "a"], "two outputs would be written to a"),
        (["-o", "x.html"], "-o x.html has no --format"),
        (["--select", "NTE001"], "no installed check has the code, prefix or name 'NTE001'"),
        (["--ignore", ","], "needs at least one value"),
        (["--fail-on", "errors"], "there is no severity 'errors'"),
        (["extra"], "unexpected argument 'extra'"),
    ],
)
def test_bad_option_is_one_clear_message(run: Run, stage: Stage, arguments: list[str], message: str) -> None:
    result = run("check", *arguments)
    assert (result.code, result.out) == (2, ""), result.err
    assert message in result.err
    assert len(result.err.splitlines()) <= 3
    assert "Traceback" not in result.err
    assert not stage.requests


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["--backend", "glo"], "--backend gloo"),
        (["--only", "fact"], "facts"),
        (["--select", "NTE001"], "--select NET001"),
        (["--select", "port-in-us"], "--select port-in-use"),
        (["--format", "htm"], "--format html"),
        (["-o", "x.html"], "--format html -o x.html"),
        (["--model", "pkg/model:make"], "--model pkg.model:make"),
        (["--nnodes", "2"], "--rdzv-backend c10d --rdzv-endpoint HOST:29500"),
        (["--fail-on", "errors"], "error"),
    ],
)
def test_bad_option_says_what_to_type(run: Run, arguments: list[str], suggestion: str) -> None:
    assert f"try: {suggestion}" in run("check", *arguments).err


def test_all_options_reach_the_request(run: Run, stage: Stage) -> None:
    line = (
        "--nproc 4 --nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint node-a:29400 --rdzv-id job7 "
        "--local-addr 10.0.0.2 --backend GLOO --model pkg.mod:make --skip smoke,tcp --full "
        "--collectives all-reduce,broadcast --sizes 1K,4M --iters 3 --join-timeout 2m --stage-timeout ddp=60 "
        "--stage-timeout backends=5s --timeout 1h --run-dir there"
    )
    assert run("check", *line.split()).code == 0
    (request,) = stage.requests
    assert (request.nproc, request.nnodes, request.node_rank) == (4, 2, 1)
    assert (request.rdzv_backend, request.rdzv_endpoint, request.rdzv_id) == ("c10d", "node-a:29400", "job7")
    assert (request.local_addr, request.backend, request.model) == ("10.0.0.2", "gloo", "pkg.mod:make")
    assert request.stages == ("facts", "rendezvous", "backends", "collectives", "ddp", "bandwidth")
    assert (request.full, request.collectives) == (True, ("all_reduce", "broadcast"))
    assert (request.sizes, request.iterations) == ((1024, 4 << 20), 3)
    assert (request.join_timeout, request.timeout) == (120.0, 3600.0)
    assert request.limits == {"ddp": 60.0, "backends": 5.0}
    assert request.run_dir == "there"


@pytest.mark.parametrize(
    "spelling",
    ["--nproc", "--nproc-per-node", "--nproc_per_node"],
)
@pytest.mark.parametrize("value", ["8", "auto", "gpu", "cpu"])
def test_nproc_has_torchruns_spellings(run: Run, stage: Stage, spelling: str, value: str) -> None:
    assert run("check", f"{spelling}={value}").code == 0
    assert str(stage.requests[0].nproc) == value


def test_torchruns_underscores_are_taken(run: Run, stage: Stage) -> None:
    line = "--nnodes 2 --node_rank 1 --master_addr a --master_port 29501 --rdzv_id x --local_addr 10.0.0.1"
    assert run("check", *line.split()).code == 0
    assert (stage.requests[0].node_rank, stage.requests[0].master_port) == (1, 29501)


def test_nothing_said_is_none(run: Run, stage: Stage) -> None:
    run("check")
    (request,) = stage.requests
    assert (request.nproc, request.nnodes, request.backend, request.timeout) == (None, None, None, None)
    assert request.stages == DEFAULT_STAGES
    assert not request.explicit_world()


def test_launcher_variables_replace_the_meeting_point(
    run: Run, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-a")
    assert run("check", "--nnodes", "2").code == 0
    assert stage.requests[0].nnodes == 2


@pytest.mark.parametrize(
    "endpoint", ["host", "host:29500", "10.0.0.1:1", "[fe80::1]:29500", "fe80::1", "a_b.c-d:65535"]
)
def test_endpoint_forms(run: Run, stage: Stage, endpoint: str) -> None:
    assert run("check", "--rdzv-endpoint", endpoint).code == 0
    assert stage.requests[0].rdzv_endpoint == endpoint


def test_sizes_double_over_a_range_as_in_nccl_tests() -> None:
    assert parse_sizes("8-64") == (8, 16, 32, 64)
    assert parse_sizes("1K-3K") == (1024, 2048, 3072)
    assert parse_sizes("4M,1k,1K") == (1024, 4 << 20)
    assert parse_sizes("1GiB") == (1 << 30,)
