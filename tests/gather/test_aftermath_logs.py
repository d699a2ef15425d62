"""Recorded output of torchrun (torch 2.13.0, two ranks) becomes the evidence of what happened."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from pathlib import Path

import pytest

from ddpdoctor.aftermath import Sources, read_sources
from ddpdoctor.aftermath.joining.file_nodes import name_by_paths
from ddpdoctor.aftermath.logs import LogReader
from ddpdoctor.aftermath.stretches import CHUNK, read_stretches
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import ExceptionRecord
from tests.cli.torchrun_output import ended, raised

RECORDED = Path(__file__).parent / "aftermath"


def read(*paths: Path) -> Evidence:
    sources = Sources()
    for path in paths:
        sources.add(path, named=True)
    evidence = read_sources(sources.found, cwd=Path("/job"), lost=sources.skipped)
    assert evidence is not None, sources.skipped
    return evidence


def recorded(name: str) -> Evidence:
    return read(RECORDED / f"{name}.txt")


def told(evidence: Evidence) -> dict[int | None, ExceptionRecord]:
    return {record.rank: record for record in evidence.exceptions}


def places(record: ExceptionRecord) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in record.frames]


def test_an_exception_has_its_rank_line_process_and_place_in_the_log() -> None:
    evidence = recorded("key")
    record = told(evidence)[1]
    assert (record.type, record.message, record.kind, record.pid) == (
        "KeyError",
        "'label_9917'",
        "log",
        16862,
    )
    assert places(record)[0] == ("crash.py", 5, "load")
    assert record.frames[0].source == "return table[label]"
    assert record.source is not None
    assert record.source[1] == 6
    assert (evidence.launch.command, evidence.launch.world_size, evidence.job[0].exit_code) == (
        "analyze",
        2,
        1,
    )


def test_what_the_agent_passes_on_is_no_exception_of_a_rank() -> None:
    assert {record.type for record in recorded("key").exceptions} == {"KeyError", "RuntimeError"}


def test_ends_of_ranks_come_from_the_block_of_failures() -> None:
    ends = {p.rank: (p.pid, p.exit_code, p.signal, p.host) for p in recorded("kill").processes}
    assert ends == {0: (16993, None, 15, "localhost"), 1: (16994, None, 9, "localhost")}


def test_a_chain_is_kept() -> None:
    record = told(recorded("chain"))[1]
    assert (record.type, record.message) == (
        "RuntimeError",
        "sample label_9917 is broken\nsecond line of the message",
    )
    assert [(each.type, each.link) for each in record.chain] == [("KeyError", "cause")]


def test_a_crash_belongs_to_the_process_that_died_of_its_signal() -> None:
    evidence = recorded("segv")
    crash = evidence.crashes[0]
    assert (crash.rank, crash.pid, crash.frames[1].line) == (1, 17008, 24)
    assert "torch._C" in crash.modules


def test_a_loader_workers_own_traceback_comes_first() -> None:
    record = told(recorded("worker"))[1]
    assert (record.type, record.message, record.worker) == ("ValueError", "bad sample 5", 1)
    assert places(record)[0] == ("crash.py", 31, "__getitem__")
    assert ("crash.py", 33, "main") in [(f.file, f.line, f.function) for f in record.parent_frames]


def test_prefixes_of_tee_and_a_traceback_in_the_block_are_one_exception() -> None:
    evidence = recorded("tee")
    assert [(r.rank, r.type) for r in evidence.exceptions if r.rank == 1] == [(1, "KeyError")]


def test_a_status_without_exception_is_kept() -> None:
    evidence = recorded("exit")
    assert {p.rank: p.exit_code for p in evidence.processes}[1] == 3
    assert 1 not in told(evidence)


def test_restarts_are_told_apart_and_an_unprefixed_traceback_finds_its_rank() -> None:
    evidence = recorded("restart")
    first = [record for record in evidence.exceptions if record.attempt == 0 and record.rank == 1]
    assert [record.type for record in first] == ["KeyError"]
    last = {record.rank: record.message[:25] for record in evidence.exceptions if record.attempt == 1}
    assert last[0] == "Gloo connectFullMesh fail"
    assert evidence.job[0].restarts == 1


def test_a_cause_without_prefix_goes_to_the_ranks_that_ended_without_another() -> None:
    texts = [text for text in recorded("nofile").texts if text.entry == "script-missing"]
    assert {text.rank for text in texts} == {0, 1}
    assert {text.line for text in texts} == {5}


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_say_the_same(tmp_path: Path, compress: object) -> None:
    assert callable(compress)
    path = tmp_path / "key.txt.gz"
    path.write_bytes(compress((RECORDED / "key.txt").read_bytes()))
    assert told(read(path))[1].type == "KeyError"


def test_a_truncated_archive_gives_what_comes_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "key.txt.gz"
    path.write_bytes(gzip.compress((RECORDED / "key.txt").read_bytes() + os.urandom(400_000))[:100_000])
    evidence = read(path)
    assert told(evidence)[1].type == "KeyError"
    assert any("is truncated" in sentence for sentence in evidence.job[0].lost)


def test_windows_line_ends_and_time_stamps_change_nothing(tmp_path: Path) -> None:
    lines = (RECORDED / "key.txt").read_text().splitlines()
    path = tmp_path / "key.log"
    path.write_bytes("\r\n".join(f"2026-11-21T01:30:06.1234Z stderr F {line}" for line in lines).encode())
    evidence = read(path)
    assert told(evidence)[1].type == "KeyError"
    assert {p.rank for p in evidence.processes} == {0, 1}


def test_a_log_that_ends_before_the_agent_speaks_still_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_text("\n".join((RECORDED / "key.txt").read_text().splitlines()[:29]))
    evidence = read(path)
    first = min(evidence.exceptions, key=lambda record: record.at.wall_ns if record.at else 0)
    assert (first.rank, first.type) == (1, "KeyError")
    assert evidence.job[0].exit_code is None


def test_tracebacks_that_a_program_caught_and_went_on_are_left_out(tmp_path: Path) -> None:
    caught = (
        'Traceback (most recent call last):\n  File "/job/a.py", line 2, in f\n    g()\nValueError: caught\n'
    )
    path = tmp_path / "healthy.log"
    path.write_text("torch/distributed/run.py:874] banner\n" + caught + "step\n" * 1000)
    assert read(path).exceptions == ()


def test_whose_traceback_it_is_is_said_to_be_unknown_where_nothing_tells(tmp_path: Path) -> None:
    text = (RECORDED / "nofile.txt").read_text().replace("exitcode  : 2", "exitcode  : 1")
    ends = "".join(
        f'Traceback (most recent call last):\n  File "/job/{name}.py", line 2, in f\n    g()\n{name}Error: x\n\n'
        for name in ("Key", "Value")
    )
    path = tmp_path / "two.log"
    path.write_text(ends + text)
    evidence = read(path)
    assert {(r.rank, r.type) for r in evidence.exceptions} == {(None, "KeyError"), (None, "ValueError")}
    assert any("does not show which of ranks" in sentence for sentence in evidence.job[0].lost)


def test_two_nodes_logs_are_one_job(tmp_path: Path) -> None:
    one = (RECORDED / "kill.txt").read_text().replace("host      : localhost", "host      : node-a")
    other = (RECORDED / "key.txt").read_text().replace("host      : localhost", "host      : node-b")
    other = other.replace("rank      : 0 (", "rank      : 2 (").replace("rank      : 1 (", "rank      : 3 (")
    other = other.replace("[rank0]", "[rank2]").replace("[rank1]", "[rank3]")
    (tmp_path / "a.log").write_text(one)
    (tmp_path / "b.log").write_text(other)
    evidence = read(tmp_path / "a.log", tmp_path / "b.log")
    assert {p.rank: (p.node, p.host) for p in evidence.processes} == {
        0: (0, "node-a"), 1: (0, "node-a"), 2: (1, "node-b"), 3: (1, "node-b"),
    }  # fmt: skip
    assert (told(evidence)[3].type, told(evidence)[3].host) == ("KeyError", "node-b")
    assert (evidence.launch.nnodes, evidence.launch.nproc, evidence.launch.world_size) == (2, 2, 4)


def test_agents_that_call_their_hosts_alike_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for name, first in (("node-a", 0), ("node-b", 2)):
        (tmp_path / name).mkdir()
        words = raised(first, f"ValueError: of {name}") + ended([(first, 1), (first + 1, -15)], first=first)
        (tmp_path / name / "train.log").write_text(words)
    evidence = read(tmp_path)
    assert {p.rank: (p.node, p.host) for p in evidence.processes} == {
        0: (0, "node-a"), 1: (0, "node-a"), 2: (1, "node-b"), 3: (1, "node-b"),
    }  # fmt: skip


def test_logs_of_one_host_that_agree_stay_together(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(ended([(1, 1), (0, -15)]))
    assert {p.host for p in read(tmp_path).processes} == {"localhost"}


def test_a_traceback_without_rank_belongs_to_the_node_whose_log_it_stands_in(tmp_path: Path) -> None:
    for host, first in (("node-a", 0), ("node-b", 2)):
        stack = f'Traceback (most recent call last):\n  File "/job/t.py", line 4, in f\n    g()\nKeyError: {first}\n'
        (tmp_path / f"{host}.log").write_text(stack + ended([(first, 1)], host=host, first=first))
    evidence = read(tmp_path)
    assert {r.rank: (r.message, r.host) for r in evidence.exceptions} == {
        0: ("0", "node-a"),
        2: ("2", "node-b"),
    }


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/node-a/t.log", "runs/node-b/t.log"], ["node-a", "node-b"]),
        (["a.log", "b.log.gz"], ["a", "b"]),
        (["/x/gpu1.cluster.out.1", "/x/gpu2.cluster.out.1"], ["gpu1.cluster", "gpu2.cluster"]),
        (["one"], ["one"]),
    ],
)
def test_nodes_are_named_by_what_differs_in_their_paths(paths: list[str], names: list[str]) -> None:
    assert name_by_paths(paths) == names


def write_tree(top: Path) -> Path:
    for local in (0, 1):
        folder = top / "job_x1y2" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("started\n")
        stack = f'Traceback (most recent call last):\n  File "/job/t.py", line {local}, in f\n    g()\nKeyError: {local}\n'
        extra = {"py_callstack": stack, "timestamp": str(1795224629 + local)}
        data = {"message": {"message": f"KeyError: {local}", "extraInfo": extra}}
        (folder / "error.json").write_text(json.dumps(data))
    return top


def test_error_files_of_a_tree_have_rank_attempt_and_time(tmp_path: Path) -> None:
    evidence = read(write_tree(tmp_path))
    assert {r.rank: (r.type, r.kind, r.frames[0].line) for r in evidence.exceptions} == {
        0: ("KeyError", "error-file", 0),
        1: ("KeyError", "error-file", 1),
    }
    assert told(evidence)[1].at is not None


def test_an_error_file_of_other_types_than_torchs_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(
        json.dumps({"message": {"message": 3, "extraInfo": {"py_callstack": [], "timestamp": {}}}})
    )
    assert read(path).exceptions[0].frames == ()


def test_the_log_and_the_error_file_of_a_rank_are_one_exception(tmp_path: Path) -> None:
    top = write_tree(tmp_path)
    stack = json.loads((top / "job_x1y2/attempt_0/1/error.json").read_text())["message"]["extraInfo"][
        "py_callstack"
    ]
    (top / "job_x1y2/attempt_0/1/stderr.log").write_text(stack)
    assert [(r.rank, r.kind) for r in read(top).exceptions if r.rank == 1] == [(1, "log")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 40, "is binary"),
        (b"\x80\x04\x95cos\nsystem\n", "is a pickle, which is never loaded"),
        (b"\x28\xb5\x2f\xfdrest", "is compressed with zstd: unpack it first"),
        (b"PK\x03\x04rest", "is a zip archive: unpack it first"),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_files_that_are_no_logs_are_named_and_skipped(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    sources = Sources()
    sources.add(path, named=True)
    assert sources.found == []
    assert f"{path} {reason}" in sources.skipped[0]


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.log")
    sources = Sources()
    sources.add(tmp_path / "p.log", named=True)
    assert sources.skipped == [f"{tmp_path / 'p.log'} is not a regular file"]


def test_a_log_with_some_binary_output_stays_a_log(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes((RECORDED / "key.txt").read_bytes() + bytes(200))
    assert told(read(path))[1].type == "KeyError"


def test_a_text_that_is_no_jobs_log_is_not_called_healthy(tmp_path: Path) -> None:
    path = tmp_path / "readme.txt"
    path.write_text("hello\nworld\n")
    assert read(path).absent["processes"].applicable


def test_a_large_log_is_read_in_stretches_and_keeps_its_line_numbers() -> None:
    filler = b"epoch 3 step 0000001 loss 0.125 lr 1e-4 throughput 1234.5 samples/s\n" * 200_000
    stream = io.BytesIO(filler + (RECORDED / "key.txt").read_bytes())
    reader, largest = LogReader("big.log"), 0
    for data in read_stretches(stream, b"", 1 << 40):
        largest = max(largest, len(data))
        reader.take(data)
    facts = reader.finish()
    assert facts.told[0].line.number == 200_000 + 6
    assert {text.match.line for text in facts.texts if text.match.entry == "gloo-peer-gone"} == {200_000 + 28}
    assert largest <= 2 * CHUNK


def test_a_line_without_end_is_cut() -> None:
    stream = io.BytesIO(b"#" * (20 << 20) + b"\n" + (RECORDED / "key.txt").read_bytes())
    stretches = list(read_stretches(stream, b"", 1 << 40))
    assert max(map(len, stretches)) <= 4 * CHUNK
    assert b"".join(stretches).count(b"KeyError") == 1


def test_secrets_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "key.log"
    text = (RECORDED / "key.txt").read_text().replace("'label_9917'", "'token=hf_abcdefghijklmnopqrstuvwx'")
    path.write_text(text)
    assert "hf_abcdef" not in json.dumps(read(path).to_dict())


def test_a_caught_traceback_that_a_logger_wrote_is_not_the_failing_ranks() -> None:
    assert [(r.rank, r.type, r.message) for r in recorded("caught").exceptions] == [
        (1, "ValueError", "only me")
    ]


def test_both_ranks_say_the_syntax_error() -> None:
    assert {r.rank for r in recorded("syntax").exceptions} == {0, 1}


def test_workers_that_the_agent_ended_are_known_by_their_processes() -> None:
    assert [(p.pid, p.signal, p.signal_sender) for p in recorded("term").processes] == [
        (15647, 15, "agent"),
        (15648, 15, "agent"),
    ]


def test_an_agents_own_exception_is_the_launchers() -> None:
    evidence = recorded("port")
    assert [(p.role, p.exit_code) for p in evidence.processes] == [("launcher", 1)]
    assert evidence.exceptions[0].pid == evidence.processes[0].pid


def test_a_process_of_spawn_has_its_own_traceback() -> None:
    record = recorded("spawn").exceptions[0]
    assert (record.rank, record.type, places(record)[0]) == (1, "KeyError", ("spawn.py", 6, "work"))


LAUNCHED = "[2023-03-13 11:38:46,003] [ERROR] [launch.py:324:sigkill_handler] ['python', '-u', 'train.py', {}'--zero'] exits with return code = -9"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (LAUNCHED.format("'--local_rank=3', "), 3),
        (LAUNCHED.format("'--local_rank', '2', "), 2),
        (LAUNCHED.format(""), None),
        ("node-b: " + LAUNCHED.format("'--local_rank=3', "), None),
        ("srun: error: node-b: task 5: Bus error (core dumped)", 5),
        ("srun: error: node-b: tasks 4-7: Bus error (core dumped)", None),
        ("srun: error: node-b: task 5: Killed", None),
    ],
)
def test_launchers_lines_name_whose_end_they_tell(tmp_path: Path, line: str, rank: int | None) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"step 1\n{line}\nend\n")
    assert {match.rank for match in read(path).texts} == {rank}
