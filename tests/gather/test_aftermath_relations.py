"""What only several lines, or the logs of several processes, show together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.aftermath import Sources, read_sources
from ddpdoctor.aftermath.enveloped import choose_unwrapping
from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis
from ddpdoctor_checks.job.blame.judging import diagnose

CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:28048"
MESH = "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
FALLBACK = (
    "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. "
    "Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())"
)
REFUSED = (
    "RuntimeError: Gloo connectFullMesh failed with [/p/third_party/gloo/gloo/transport/tcp/pair.cc:525] "
    "connect [127.0.1.1]:41251: Connection refused"
)


def read(folder: Path, **logs: str) -> Evidence:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    found = Sources()
    found.add(folder, named=True)
    evidence = read_sources(found.found, cwd=folder)
    assert evidence is not None
    return evidence


def judge(folder: Path, **logs: str) -> Diagnosis:
    return diagnose(read(folder, **logs))


def code_of(diagnosis: Diagnosis) -> str | None:
    return diagnosis.cause.code if diagnosis.cause is not None else None


def member(rank: int, comm: str, id: str | None = "0x77") -> str:
    named = f" commId {id}" if id else ""
    return f"n1:{100 + rank}:{100 + rank} [{rank}] NCCL INFO comm {comm} rank {rank} nranks 4 cudaDev {rank}{named} - Init COMPLETE\n"


def call(rank: int, comm: str, op: str, number: int, count: int, root: int = 0) -> str:
    return (
        f"n1:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {op}: opCount {number:x} sendbuff 0x7f recvbuff 0x7f count {count} "
        f"datatype 7 op 0 root {root} comm {comm} [nranks=4] stream 0x55\n"
    )


def listing(*, odd: int | None = None, id: str | None = "0x77", op: str = "AllReduce") -> str:
    lines = [member(rank, f"0x1{rank}", id) for rank in range(4)]
    for number in (15, 16):
        for rank in range(4):
            count = 53 if (rank, number) == (odd, 16) else 4096
            lines.append(call(rank, f"0x1{rank}", op, number, count))
    return "".join(lines)


@pytest.mark.parametrize("id", ["0x77", None])
def test_calls_that_nccl_lists_with_other_counts_name_the_odd_rank(tmp_path: Path, id: str | None) -> None:
    evidence = read(tmp_path, nccl=listing(odd=2, id=id))
    told = [text for text in evidence.texts if text.entry == "calls-listed-differ"]
    assert {text.groups["rank"] for text in told} == {"2"}
    assert told[0].groups["own"] == "AllReduce #16 of 53 float32 (sum)"
    assert (Path(told[0].file or "").name, told[0].line) == ("nccl.log", 11)
    diagnosis = diagnose(evidence)
    assert code_of(diagnosis) == "COL003"


def test_calls_that_match_or_cannot_be_paired_say_nothing(tmp_path: Path) -> None:
    equal = listing()
    two_of_a_size = listing(odd=2, id=None) + member(0, "0x20", None)
    partial = listing() + call(0, "0x10", "AllReduce", 17, 8)
    sends = listing(odd=2) + call(0, "0x10", "Send", 17, 8)
    for number, text in enumerate((equal, two_of_a_size, partial, sends)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not [each for each in read(folder, nccl=text).texts if each.entry == "calls-listed-differ"]


def spawned(*, more: str = "") -> str:
    return (
        f"finish 0\nTraceback (most recent call last):\n"
        f'  File "send.py", line 46, in <module>\n    main()\n'
        f'  File "/o/torch/multiprocessing/spawn.py", line 160, in join\n    raise ProcessRaisedException(msg, error_index)\n'
        f"torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
        f"Traceback (most recent call last):\n"
        f'  File "/o/torch/multiprocessing/spawn.py", line 69, in _wrap\n    fn(i, *args)\n'
        f'  File "/w/send.py", line 40, in main_worker\n    dist.recv(input, 0)\n{more or CLOSED}\n'
    )


def test_first_of_spawned_processes_that_lost_a_peer_shows_that_the_peer_ended_well(tmp_path: Path) -> None:
    diagnosis = judge(tmp_path, run=spawned())
    assert (code_of(diagnosis), diagnosis.suspects) == ("COL008", RankSet([0]))


def test_spawned_process_with_its_own_error_is_the_cause(tmp_path: Path) -> None:
    assert code_of(judge(tmp_path, run=spawned(more="KeyError: 'label'"))) == "ERR001"


def test_loopback_fallback_explains_a_mesh_that_failed_and_nothing_else(tmp_path: Path) -> None:
    told = f"[rank9]:[W ProcessGroupGloo.cpp:721] {FALLBACK}\n"
    failed = f"[rank8]: RuntimeError: {MESH}\n"
    for name, text, code in (("mesh", told + failed, "NET003"), ("fine", told + "step 1 loss 2.0\n", None)):
        folder = tmp_path / name
        folder.mkdir()
        assert code_of(judge(folder, serve=text)) == code


@pytest.mark.parametrize(("names", "nodes"), [(("node-a", "node-b"), 2), (("rank0", "rank1"), 1)])
def test_logs_that_are_called_after_nodes_are_of_several(
    tmp_path: Path, names: tuple[str, str], nodes: int
) -> None:
    logs = {names[0]: f"[rank0]: RuntimeError: {MESH}\n", names[1]: f"[rank1]: {REFUSED}\n"}
    assert read(tmp_path, **logs).launch.nnodes == nodes


IDLE = (
    "(EngineCore_DP0 pid=4411) INFO 05-22 18:22:31 [shm_broadcast.py:466] No available shared memory broadcast block found in "
    "60 seconds.\n"
)


@pytest.mark.parametrize(
    ("more", "code"), [("", None), ("TimeoutError: RPC call to sample_tokens timed out.\n", "COL005")]
)
def test_engine_that_waits_is_idle_unless_something_else_failed(
    tmp_path: Path, more: str, code: str | None
) -> None:
    assert code_of(judge(tmp_path, serve=IDLE + more)) == code


def rendezvous(inner: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/o/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 113, in _call_store\n'
        "    return getattr(self._store, store_op)(*args, **kwargs)\n"
        f"{inner}\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/o/bin/torchrun", line 33, in <module>\n    sys.exit(main())\n'
        '  File "/o/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 115, in _call_store\n'
        "    raise RendezvousConnectionError(\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. See inner exception for details.\n"
    )


def test_store_whose_connection_broke_had_been_reached(tmp_path: Path) -> None:
    assert code_of(judge(tmp_path, run=rendezvous("RuntimeError: Broken pipe"))) is None


def test_store_that_was_never_reached_has_no_host(tmp_path: Path) -> None:
    inner = "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (a, 29500)."
    assert code_of(judge(tmp_path, run=rendezvous(inner))) == "NET007"


def envelope(text: str, key: str = "log", end: str = "\n") -> str:
    rows = [
        {key: line + end, "time": f"2026-01-01T00:00:0{n % 10}Z"} for n, line in enumerate(text.split("\n"))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(("key", "end"), [("log", "\n"), ("message", "")])
def test_lines_in_json_are_read_as_what_they_hold(tmp_path: Path, key: str, end: str) -> None:
    text = "step 1\n" + spawned(more="KeyError: 'label'").rstrip("\n")
    diagnosis = judge(tmp_path, run=envelope(text, key, end))
    assert code_of(diagnosis) == "ERR001"


def test_long_line_that_docker_cut_is_one_line_again() -> None:
    rows = [{"log": "a\n"}, {"log": "b begins "}, {"log": "and ends\n"}]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    unwrap = choose_unwrapping(data)
    assert unwrap is not None
    assert unwrap(data + b"no object\n") == b"a\nb begins and ends\nno object\n"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"step 1\nstep 2\n",
        b'{"loss": 2.0}\n{"loss": 1.9}\n',
        b'{"log": "a\\n"}\nplain\nplain\n',
        b"{broken\n{x\n",
    ],
)
def test_other_logs_stay_as_they_are(head: bytes) -> None:
    assert choose_unwrapping(head) is None
