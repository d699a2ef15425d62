"""The table of texts: each entry knows its real text and not its neighbours, and reading is quick whatever comes."""

from __future__ import annotations

import re
import time

import pytest

from ddpdoctor.evidence.texts import matching
from ddpdoctor.evidence.texts.matching import (
    CAUSE,
    CONSEQUENCE,
    ENTRIES,
    LINE_LIMIT,
    NOISE,
    TextEntry,
    choose_entry,
    find_entry,
    match_line,
    match_text,
    scan_chunk,
)
from tests.marks import sampled

IDS = [entry.id for entry in ENTRIES]

REQUIRED = {
    *(f"NET{n:03}" for n in (1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 16)),
    *("ENV001", "ENV007", "ENV008", "ENV009", "ENV012", "ENV017", "ENV019"),
    *(f"BKD{n:03}" for n in (*range(1, 11), 12, 13)),
    *("COL003", "COL005"),
    *("DDP001", "DDP003", "DDP004", "DDP009", "DDP010", "DDP014", "DDP016", "DDP017"),
    *("CKP002", "CKP004", "CKP005"),
    *("ERR002", "ERR004", "ERR007", "ERR008", "ERR009", "ERR010", "ERR011"),
}
"""Codes that a text alone can speak for."""


def ids(line: str) -> list[str]:
    return [id for id, _ in match_line(line)]


def code(text: str) -> str | None:
    entry = choose_entry(match_text(text))
    return entry.code if entry else None


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_entry_knows_its_real_text(entry: TextEntry) -> None:
    assert entry.id in ids(entry.example)


@pytest.mark.parametrize("entry", sampled(ENTRIES, 4), ids=IDS)
@pytest.mark.parametrize("prefix", ["[rank1]: ", "[default0]:", "1: ", "2026-11-20 10:00:01,123 "])
def test_prefixes_of_launchers_do_not_hide_a_text(entry: TextEntry, prefix: str) -> None:
    if entry.id == "rank-terminated" and not prefix.startswith("["):
        return
    assert entry.id in ids(prefix + entry.example)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_log_is_searched_for_something_that_stands_in_every_text(entry: TextEntry) -> None:
    found = list(scan_chunk(b"step 1\n" + entry.example.encode() + b"\nstep 2\n"))
    assert [(offset, entry.id in [id for id, _ in matches]) for offset, _, matches in found] == [(7, True)]


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_entry_is_well_formed(entry: TextEntry) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.id)
    assert entry.role in (CAUSE, CONSEQUENCE, NOISE)
    assert entry.code is None or re.fullmatch(r"[A-Z]{3}\d{3}", entry.code)
    assert re.fullmatch(r"([A-Z]\d\d( [A-Z]\d\d)*)?", entry.rows)
    assert "\n" not in entry.example
    assert len(entry.example) < LINE_LIMIT
    assert not re.search(r"[^\\][*+]|\{\d+,\}", entry.pattern), "repetitions have to be bounded"
    assert not entry.gates or any(gate in entry.example for gate in entry.gates)


def test_ids_are_unique_and_codes_of_the_texts_are_there() -> None:
    assert len(set(IDS)) == len(IDS)
    assert {entry.code for entry in ENTRIES if entry.code} >= REQUIRED
    assert find_entry("ready-twice").code == "DDP003"
    with pytest.raises(KeyError):
        find_entry("nothing")


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        (
            "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            {"port": "29500"},
        ),
        (find_entry("clients-missing").example, {"seconds": "61", "joined": "2", "expected": "3"}),
        (find_entry("name-unresolvable").example, {"host": "no-such-host.invalid", "port": "29511", "error": "-2"}),
        (find_entry("loopback-dialled").example, {"address": "127.0.1.1"}),
        (find_entry("local-rank-argument").example, {"option": "--local-rank"}),
        ("train.py: error: unrecognized arguments: --x 1 --local_rank 0", {"option": "--local_rank"}),
        (find_entry("unused-indices").example, {"rank": "1", "indices": "2 3"}),
        (find_entry("unused-names").example, {"rank": "1", "names": "b.weight, b.bias"}),
        (find_entry("ready-twice-parameter").example, {"index": "1", "name": "a.bias"}),
        ("Parameter at index 7 has been marked as ready twice.", {"index": "7"}),
        (find_entry("parameter-sizes-differ").example, {"index": "0", "what": "sizes", "own": "[4, 5]"}),
        (find_entry("mismatch-of-sizes").example, {"got": "30000", "expected": "4"}),
        (find_entry("nccl-timed-out").example, {"sequence": "1", "op": "BROADCAST", "numel": "131072000", "ms": "600000"}),
        (find_entry("gloo-timed-out").example, {"ms": "6000", "what": "recv"}),
        (find_entry("barrier-names-ranks").example, {"missing": "1", "ms": "3000"}),
        ("RuntimeError: [Rank 0]: Ranks 1, 2, 3 failed to pass monitoredBarrier in 5 ms", {"missing": "1, 2, 3", "ms": "5"}),
        (find_entry("device-memory").example, {"size": "2.00 GiB"}),
        (find_entry("device-ids-refused").example, {"ids": "[0]", "devices": "{device(type='cpu')}."}),
        (find_entry("modified-in-place").example, {"tensor": "torch.cuda.FloatTensor [64]", "version": "3", "expected": "2"}),
        (find_entry("agent-saw-exit").example, {"status": "3", "local_rank": "1", "pid": "2024"}),
        (find_entry("kernel-killed").example, {"pid": "31415", "command": "python"}),
    ],
)  # fmt: skip
def test_parts_of_a_text_are_named(line: str, groups: dict[str, str]) -> None:
    assert groups in [found for _, found in match_line(line)]


NEAR_MISSES = {
    "port of another program": "OSError: [Errno 98] Address already in use",
    "port that the agent's store may share": "The server socket on [::]:29500 has failed to bind. TORCHELASTIC_USE_AGENT_STORE is enabled so ignoring the error.",
    "name of another service": "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded (Caused by NameResolutionError(\"Failed to resolve 'huggingface.co' ([Errno -2] Name or service not known)\"))",
    "reset of another connection": "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    "closed by a database": "psycopg2.OperationalError: server closed the connection unexpectedly, Connection closed by peer",
    "broken pipe of a shell": "BrokenPipeError: [Errno 32] Broken pipe",
    "key of a user's dictionary": "KeyError: 'label_9917'",
    "name of a variable in a longer key": "KeyError: 'MY_RANK'",
    "another unknown argument": "train.py: error: unrecognized arguments: --learning-rate=0.1",
    "local rank in another complaint": "train.py: error: argument --local-rank: expected one argument",
    "loader worker that reports": "UserWarning: This DataLoader will create 8 worker processes in total.",
    "full disk": "OSError: [Errno 28] No space left on device: '/data/out.pt'",
    "allocation on the CPU": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12",
    "signal that is not HUP": "SignalException: Process 17912 got signal: 11",
    "mismatch that the user found": "ValueError: detected mismatch between labels on ranks",
    "time-out of a user": "TimeoutError: Timed out waiting 30s for the tokenizer",
    "attribute of another class": "AttributeError: 'ResNet' object has no attribute 'generate'",
    "wrapper of somebody else": "AttributeError: 'MyDistributedDataParallelism' object has no attribute 'x'",
    "keys without the prefix": 'Unexpected key(s) in state_dict: "head.weight", "modules.x". ',
    "module in a longer name": 'Missing key(s) in state_dict: "submodule.weight". ',
    "file that exists elsewhere": "FileExistsError: File exists",
    "unused in a comment of a log": "INFO found 3 parameters that were not used in producing loss",
    "memory mentioned": "max memory allocated: 70.1 GiB, out of 79.1 GiB",
    "CUDA error of another kind": "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "assertion of Python": "AssertionError: Assertion `x` failed",
    "watchdog of somebody else": "Watchdog caught nothing in 600 s",
    "process that was killed by name": "Killed by the user",
    "abort with a reason": "terminate called after throwing an instance of 'std::bad_alloc'",
    "import of another symbol": "ImportError: x.so: undefined symbol: _ZN2at4_ops5zeros4callE",
    "nccl in a path": "Using /opt/nccl/lib and ncclResultOk",
    "successful connections": "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    "store that is fine": "The server has started on port = 29500.",
    "interface that is used": "node-a:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "parent directory of a recipe": "Parent directory of the checkpoint is /ckpt",
}  # fmt: skip


@pytest.mark.parametrize("line", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_near_misses_are_not_taken(line: str) -> None:
    found = [id for id in ids(line) if find_entry(id).role != NOISE]
    assert found in ([], ["agent-signalled"])
    assert "ENV012" not in [find_entry(id).code for id in found]


@pytest.mark.parametrize("entry", sampled(ENTRIES, 4), ids=IDS)
@pytest.mark.parametrize(
    "quoted", ['    raise RuntimeError("{}")', '[rank0]:     raise ValueError("{}")', '    if "{}" in str(error):',
               'self.assertRaisesRegex(RuntimeError, "{}")', '# {}', '    message = "{}"', '    logger.error("{}")'],
)  # fmt: skip
def test_source_code_in_a_traceback_says_nothing(entry: TextEntry, quoted: str) -> None:
    assert ids(quoted.format(entry.example)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, invalid usage\n"
         "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
         "Duplicate GPU detected : rank 0 and rank 4 both on CUDA device 7000", "BKD003"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
         "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
         "Cuda failure 'invalid device ordinal'", "BKD004"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:94, unhandled system error\n"
         "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\nLast error:\n"
         "Error while creating shared memory segment /dev/shm/nccl-cjY8K5 (size 10617216)", "ENV008"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:94, unhandled system error\n"
         "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\nLast error:\n"
         "socketProgress: Connection closed by remote peer node-a<45123>", None),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:94, unhandled system error\n"
         "ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "BKD002"),
        ("[Rank 0] NCCL watchdog thread terminated with exception: CUDA error: device-side assert triggered", "ERR007"),
        ("[Rank 0] NCCL watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation "
         "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600341 milliseconds", "COL005"),
        ("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n Original exception: \n"
         "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv "
         "operation to complete", "COL002"),
        ("RuntimeError: Error(s) in loading state_dict for Linear:\n\tMissing key(s) in state_dict: \"weight\". \n"
         "\tUnexpected key(s) in state_dict: \"module.weight\". ", "CKP004"),
        ("RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] error=Connection refused, "
         "remote=[127.0.1.1]:23961", "NET003"),
        ("KeyError: 'label_9917'", None),
    ],
)  # fmt: skip
def test_narrowest_text_of_a_message_decides(text: str, expected: str | None) -> None:
    assert code(text) == expected


def test_victims_texts_have_no_code_and_their_role() -> None:
    entry = choose_entry(match_text(find_entry("gloo-peer-gone").example))
    assert entry is not None
    assert (entry.role, entry.code) == (CONSEQUENCE, None)


def test_noise_alone_chooses_nothing() -> None:
    assert choose_entry(match_text(find_entry("address-family").example)) is None


def test_messages_are_matched_line_by_line_and_each_entry_once() -> None:
    lines = "\n".join(["KeyError: 'RANK'"] * 3 + ["nothing", find_entry("clients-missing").example])
    assert [id for id, _ in match_text(lines)] == ["clients-missing", "variable-looked-up"]


def test_scanning_gives_offsets_lines_and_survives_binary_and_progress_bars() -> None:
    known = find_entry("group-uninitialised").example.encode()
    chunk = b"\xff\xfe\x00Error\n" + b"50%|##  |\r" + known + b"\r100%|####|\r\n" + known + b"\r\n" + known
    found = list(scan_chunk(chunk))
    assert [chunk[offset : offset + len(known)] for offset, _, _ in found] == [known] * 3
    assert {line for _, line, _ in found} == {known.decode()}


def test_endless_line_is_cut() -> None:
    chunk = b"x" * 5_000_000 + find_entry("group-uninitialised").example.encode() + b"y" * 5_000_000
    started = time.process_time()
    found = list(scan_chunk(chunk))
    assert time.process_time() - started < 10
    assert all(len(line) <= LINE_LIMIT for _, line, _ in found)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_no_text_makes_a_pattern_slow(entry: TextEntry) -> None:
    pattern = re.compile(entry.pattern)
    words = [part for part in re.split(r"\W+", entry.example) if part]
    hostile = [
        (entry.anchor * LINE_LIMIT)[:LINE_LIMIT],
        (entry.example[: len(entry.example) * 2 // 3] * LINE_LIMIT)[:LINE_LIMIT],
        (" ".join(words[:4]) + " ") * (LINE_LIMIT // 20),
        entry.anchor + "9" * LINE_LIMIT,
        entry.anchor + "[127.0." * (LINE_LIMIT // 7),
        entry.anchor + ", " * (LINE_LIMIT // 2),
    ]
    started = time.process_time()
    for text in hostile:
        pattern.search(text[:LINE_LIMIT])
    # Some milliseconds here; a pattern that backtracks would take minutes.
    assert time.process_time() - started < 5


def test_streaming_takes_nothing_like_a_pattern_per_line() -> None:
    """A gigabyte is to stream in ten seconds; this asks for a twentieth of that, as the machine may be busy."""
    lines = [
        f"[rank{i % 8}]: step {i} loss={i / 7:.6f} lr=1.0e-4 Epoch {i // 100} Acc@1 77.21 (76.89) tokens/s=12345.6"
        for i in range(40000)
    ]
    chunk = "\n".join(lines).encode()
    started = time.process_time()
    assert list(scan_chunk(chunk)) == []
    assert len(chunk) / (time.process_time() - started) > 5e6


def test_few_gates_have_no_rare_character() -> None:
    assert len(matching._plain_gates()) <= 4


def test_gate_needs_something_rare() -> None:
    with pytest.raises(ValueError, match="nothing rare"):
        matching._choose_gate("in the deep")
