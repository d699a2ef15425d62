"""Each code of a crashed job: it is told from made-up evidence, and not where things only look like it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpdoctor.evidence import Absent, Evidence, Frame
from ddpdoctor.evidence.job import (
    ExceptionRecord,
    MemoryRecord,
    ProcessRecord,
    WrapperFacts,
)
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor.judge import CheckRow, order_findings
from ddpdoctor.testing import make_world
from tests.checks.crashed import all_raise, everyone_raises, one_raises, said, segfault, unused
from tests.checks.jobs import LOOP, SITE, TIMED_OUT, Job, at, cause_of, judge

SERIALISATION = Frame("/venv/lib/python3.11/site-packages/torch/serialization.py", 1500, "load")
IMPORT = (Frame("helpers.py", 3, "<module>"), Frame("train.py", 1, "<module>"))
TWICE = find_entry("ready-twice").example + "\n" + find_entry("ready-twice-parameter").example
PREFIX = (
    'Error(s) in loading state_dict for Linear:\n\tMissing key(s) in state_dict: "weight", "bias". \n'
    '\tUnexpected key(s) in state_dict: "module.weight", "module.bias". '
)

OTHER_PREFIX = (
    'Error(s) in loading state_dict for DistributedDataParallel:\n\tMissing key(s) in state_dict: "module.weight". \n'
    '\tUnexpected key(s) in state_dict: "weight". '
)


def out_of_memory() -> Job:
    job = Job(4).dies(2, 9).complains([0, 1, 3])
    job.set(2, rss_peak_bytes=30 << 30)
    job.memory.append(MemoryRecord(0, "node-a", limit_bytes=32 << 30, oom_kills=1))
    return job


def spawned() -> Job:
    """A script without a launcher: children of multiprocessing that are no ranks yet."""
    job = Job(0, nproc=1)
    record = ProcessRecord(
        77, role="other", host="node-a", started=at(0), ended=at(2), exit_code=1, clean_end=True
    )
    job.extra.append(record)
    message = "\n        An attempt has been made to start a new process before the\n        current process has finished"
    job.exceptions.append(
        ExceptionRecord(
            77, "RuntimeError", message, (Frame("train.py", 12, "<module>"),), host="node-a", at=at(1.9)
        )
    )
    return job


def launcher_fails(entry: str, type: str | None = None, **launch: object) -> Job:
    """Only the launcher said something; no rank was started."""
    job = Job(0, nproc=2, launch={"nnodes": 2, "world_size": 4, **launch})
    job.extra.append(
        ProcessRecord(
            50, role="launcher", host="node-a", started=at(0), ended=at(61), exit_code=1, clean_end=True
        )
    )
    kind, message = said(entry) if type is None else (type, "")
    job.exceptions.append(ExceptionRecord(50, kind, message, host="node-a", at=at(60)))
    return job


def lost_node() -> Job:
    job = Job(4, nproc=2).complains([0, 1])
    for rank in (2, 3):
        job.set(rank, ended=None, exit_code=None, clean_end=False)
    return job


def timed_out(world: int = 4, nproc: int | None = None, silent: tuple[int, ...] = (2,)) -> Job:
    job = Job(world, nproc=nproc)
    for rank in range(world):
        if rank not in silent:
            job.raises(rank, "RuntimeError", TIMED_OUT, seconds=16 + rank / 1000)
    return job.terminates(silent, 17)


def file_rendezvous(entry: str = "gloo-mesh-refused") -> Job:
    job = everyone_raises(entry)
    for rank in range(2):
        job.set(rank, init_method="file:///tmp/rendezvous")
    return job


def models_differ() -> Job:
    job = Job(3)
    for rank, params in ((0, 2), (1, 4), (2, 2)):
        other = 1 if rank != 1 else 0
        text = f"DDP expects same model across all ranks, but Rank {rank} has {params} params, while rank {other} has inconsistent {4 if other else 2} params."
        job.raises(rank, "RuntimeError", text, 3)
    return job


def modified_in_place(torch: str = "2.4.1", buffers: tuple[str, ...] = ("bn.running_mean",)) -> Job:
    job = one_raises(*said("modified-in-place"), world=2, rank=0).set(0, torch=torch)
    job.wrappers.append(
        WrapperFacts(job.processes[0].pid, "Net", buffers=buffers, broadcast_buffers=True, rank=0)
    )
    return job


def uneven() -> Job:
    """Rank 1 ran out of batches and ended well; the others lost it."""
    return Job(3).set(1, ended=at(9)).complains([0, 2], 9.2)


def usage(entry: str = "local-rank-argument") -> Job:
    job = Job(2)
    for rank in range(2):
        job.exits(rank, 2, 1.0, how=None).says_example(rank, entry)
    return job


def hung_up() -> Job:
    job = Job(2).terminates([0, 1], 3600)
    job.says_example(None, "agent-hung-up")
    return job


def nodes_time_out() -> Job:
    return timed_out(4, nproc=2, silent=())


LINES = (
    # Name, entry that rank 1 prints before everyone loses it, words of the message.
    ("BKD010", "xid-device-faulty", 'a device is faulty: "'),
    ("BKD012", "nccl-fabric-not-ready", "the NVLink fabric is not ready"),
    ("BKD012 cuda", "fabric-not-initialised", "system not yet initialized"),
    ("BKD013", "ofi-transfer-failed", "the network plugin of NCCL failed"),
    ("NET016 connect", "rdma-connect-failed", "the RDMA path does not carry data"),
    ("NET004 nccl", "nccl-no-interface", "NCCL finds no usable network interface"),
    ("ENV005", "nccl-versions-differ", "different versions of NCCL"),
    ("ENV008 nccl text", "nccl-shared-memory-small", "/dev/shm is too small for NCCL"),
    ("ENV010 ofi", "ofi-memory-not-locked", "could not lock memory"),
    ("COL009", "ras-process-dead", "does not respond"),
    ("COL011", "nccl-point-to-point-alone", "no counterpart"),
    ("COL001", "nccl-tests-wrong", "incorrect result"),
    ("ENV013", "nccl-file-missing", "cannot be applied"),
    ("BKD012 nvls", "nccl-nvls-failed", "the NVLink fabric is not ready"),
    ("BKD007 iommu", "dma-blocked", "cannot reach each other's memory"),
    ("ERR004 ucx", "signal-caught", "crashed in native code"),
    ("NET011 firewall", "nccl-peer-silent", "went silent"),
    ("COL003 nccl line", "nccl-collective-mismatch", "mismatched collectives"),
    ("NET013 ssh", "node-unreachable-for-launcher", "another node cannot be reached"),
    ("NET013 store", "store-unroutable", "another node cannot be reached"),
    ("NET004 link-local", "nccl-link-local-dialled", "NCCL finds no usable network interface"),
    ("NET004 bind", "nccl-address-unusable", "NCCL finds no usable network interface"),
    ("ERR009 scheduler", "scheduler-refused-step", "the job could not be started"),
    ("NET006 pod", "pod-not-started", "a part of the job never started"),
    ("NET015 panic", "kernel-node-ended", "a node is gone"),
    ("BKD010 amdgpu", "amdgpu-lost", "a device is faulty"),
    ("BKD012 imex", "nccl-fabric-import-refused", "the NVLink fabric is not ready"),
    ("BKD007 import", "nccl-peer-import-failed", "cannot reach each other's memory"),
    ("BKD001 kfd", "rocm-device-closed", "NCCL finds no GPU"),
    ("BKD004 lightning", "devices-fewer-than-asked", "the GPU index is out of range"),
)


CASES: dict[str, tuple[Callable[[], Job | Evidence], str, str]] = {
    # Name -> job, ranks at fault, words that the message must have.
    "ERR001 loader": (
        lambda: one_raises("KeyError", "'label_9917'", worker=3, kind="uncaught"), "1",
        "at train.py:71 in main (in DataLoader worker 3): KeyError: 'label_9917'",
    ),
    "ERR002 counted": (out_of_memory, "2", "memory ran out, using 30 GiB of 32 GiB"),
    "ERR002 kernel": (
        lambda: Job(2).dies(1, 9, signal_sender="kernel (out of memory)").complains([0]), "1", "memory ran out",
    ),
    "ERR002 worker": (
        lambda: _with_oom(one_raises(*said("loader-killed"), world=2)), "1", "one of its DataLoader workers",
    ),
    "ERR003": (lambda: Job(2).dies(0, 7).complains([1]), "0", "SIGBUS"),
    "ERR004": (segfault, "1", "at ops.py:9 in fused: segmentation fault in fast_ops.so"),
    "ERR004 worker": (lambda: one_raises(*said("loader-crashed"), world=2), "1", "of a DataLoader worker"),
    "ERR005 kill": (lambda: Job(2).dies(1, 9).complains([0]), "1", "sender unknown"),
    "ERR005 sender": (lambda: Job(2).dies(1, 9, signal_sender="pid 17 (bash)").complains([0]), "1", "sent by pid 17 (bash)"),
    "ERR005 gone": (
        lambda: Job(2).set(1, ended=None, exit_code=None, clean_end=False).complains([0]), "1", "gone without",
    ),
    "ERR006 exit": (lambda: Job(2).exits(1, 3).complains([0]), "1", "at train.py:55 in main: it called sys.exit with status 3"),
    "ERR006 text": (
        lambda: Job(2).exits(1, 1, exit_text="no data").complains([0]), "1", "status 1 (no data)",
    ),
    "ERR006 unseen": (lambda: Job(2).exits(1, 1, how=None).complains([0]), "1", "no exception was seen"),
    "ERR006 usage": (
        lambda: Job(1).exits(0, 2, 1.0, how=None, last_words="usage: train.py\ntrain.py: error: argument --lr: expected one argument"),
        "0", "argument --lr: expected one argument",
    ),
    "ERR007": (lambda: one_raises(*said("device-error"), world=2), "1", "device-side assert triggered (CUDA errors are asynchronous"),
    "ERR007 abort": (
        lambda: Job(2).dies(1, 6).says(1, "[Rank 1] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered").complains([0]),
        "1", "an illegal memory access",
    ),
    "ERR008": (lambda: one_raises(*said("device-memory"), world=2), "1", "ran out of memory (2.00 GiB asked for)"),
    "ERR009 module": (
        lambda: _unstarted("ModuleNotFoundError", "No module named 'einops'"), "0-1", "a module is missing",
    ),
    "ERR009 syntax": (
        lambda: _unstarted("SyntaxError", "invalid syntax (train.py, line 12)", ()), "0-1", "does not parse",
    ),
    "ERR009 file": (lambda: usage("script-missing"), "0-1", "cannot be opened: No such file or directory"),
    "ERR010": (
        lambda: Job(2).dies(0, 6, clean_end=True).terminates([1]).says_example(0, "aborted-at-exit"), "0",
        "after its script had ended",
    ),
    "ENV001": (lambda: everyone_raises("variable-expected"), "0-1", "RANK is not set"),
    "ENV001 key": (
        lambda: one_raises("KeyError", "'LOCAL_RANK'", 0, 1, (Frame("<frozen os>", 679, "__getitem__"), *LOOP)), "0", "LOCAL_RANK is not set",
    ),
    "ENV007": (usage, "0-1", "does not accept --local-rank"),
    "ENV008": (lambda: one_raises(*said("loader-bus-error"), world=2), "1", "/dev/shm is too small for a DataLoader worker"),
    "ENV008 nccl": (lambda: one_raises("torch.distributed.DistBackendError", find_entry("nccl-shared-memory-full").example, world=2), "1", "for NCCL"),
    "ENV009": (lambda: one_raises(*said("loader-files-exhausted"), world=2), "1", "limit of open files"),
    "ENV010": (lambda: one_raises("torch.distributed.DistBackendError", find_entry("memory-not-locked").example, world=2), "1", "could not lock memory"),
    "ENV012": (hung_up, "", "SIGHUP"),
    "ENV012 signal": (lambda: Job(2).dies(0, 1, 60).dies(1, 1, 60), "", "SIGHUP"),
    "ENV017": (spawned, "", "at train.py:12: processes are started"),
    "ENV019": (lambda: everyone_raises("group-uninitialised"), "0-1", "at train.py:71 in main (rank 0 first): torch.distributed is used before init_process_group"),
    "ENV019 twice": (lambda: everyone_raises("group-initialised-twice"), "0-1", "initialized twice"),
    "ENV011": (lambda: one_raises(*said("threads-exhausted"), world=2), "1", "no more threads or processes"),
    "NET001": (lambda: one_raises(*said("port-taken"), rank=0), "0", "port 29500 is held"),
    "NET001 of torch 2.4": (lambda: launcher_fails("port-taken-unnamed", master_port=29501), "", "port 29501 is held"),
    "NET001 of torch 2.4, unknown": (lambda: launcher_fails("port-taken-unnamed", master_port=None), "", "failed: the rendezvous port is held"),
    "NET002": (lambda: _unresolved(), "0-1", "no-such-host.invalid cannot be resolved"),
    "NET002 printed": (lambda: _unresolved_beside(), "0", "node-a cannot be resolved"),
    "NET003": (lambda: everyone_raises("loopback-dialled", nnodes=2), "0-1", "contacted at 127.0.1.1"),
    "NET004": (lambda: everyone_raises("gloo-interface-missing"), "0-1", "GLOO_SOCKET_IFNAME=eth9 names no interface"),
    "NET005": (lambda: everyone_raises("gloo-mesh-timed-out", nnodes=2), "0-1", "a firewall"),
    "NET006": (lambda: _few_came(), "2", "2 of 3 joined within 61 s; rank 2 never started"),
    "NET006 agent": (lambda: launcher_fails("rendezvous-timed-out", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"), "", "not all ranks joined; the missing ranks cannot be determined"),
    "NET007 raised from a time-out": (lambda: _unreachable(), "", "no store serves the rendezvous at 10.0.0.1:29400"),
    "NET007": (lambda: launcher_fails("rendezvous-unreachable", rdzv_endpoint="node-a:29400"), "", "no store serves the rendezvous at node-a:29400"),
    "NET008": (lambda: _unresolved(rdzv_backend="c10d", rdzv_endpoint="10.0.0.1:29400", master_addr=None), "0-1", "published itself as no-such-host.invalid"),
    "NET009": (lambda: launcher_fails("port-of-endpoint-invalid"), "", "is not a port"),
    "NET009 of torch 2.4": (lambda: launcher_fails("port-denied-unnamed", master_port=22), "", "port 22 is privileged"),
    "NET009 store": (lambda: everyone_raises("port-of-store-invalid"), "0-1", "99999 is not a port"),
    "NET010": (file_rendezvous, "0-1", "/tmp/rendezvous contained addresses of an earlier run"),
    "NET010 loopback": (lambda: file_rendezvous("loopback-dialled"), "0-1", "contained addresses of an earlier run"),
    "NET010 time-out": (lambda: file_rendezvous("gloo-mesh-timed-out"), "0-1", "contained addresses of an earlier run"),
    "NET011": (nodes_time_out, "", "between node-a and node-b was lost"),
    "ERR011": (lambda: _blocked_watchdog(), "", "was blocked for 480 s"),
    "NET016": (lambda: _fabric(), "0-3", "10.4.16.8"),
    **{
        name: (functools.partial(lambda each: _line(each), entry), "0-1" if name.startswith("COL003") else "1", words)
        for name, entry, words in LINES
    },
    "NET015": (lost_node, "2-3", "The node node-b with ranks 2-3 is gone"),
    "BKD001": (lambda: everyone_raises("backend-not-built"), "0-1", "nccl is not in this PyTorch build"),
    "BKD001 unknown": (lambda: everyone_raises("backend-unknown"), "0-1", "no backend 'foo'"),
    "BKD001 device": (lambda: everyone_raises("backend-without-device"), "0-1", "nccl finds no GPU"),
    "BKD002": (lambda: everyone_raises("nccl-failed-in-torch"), "0-1", "nccl failed: unhandled cuda error"),
    "BKD002 gloo": (lambda: everyone_raises("gloo-mesh-timed-out"), "0-1", "gloo failed"),
    "BKD002 transport": (lambda: everyone_raises("gloo-device-unsupported"), "0-1", "unsupported gloo device"),
    "BKD003": (lambda: one_raises("torch.distributed.DistBackendError", "NCCL error in: x.cpp:1, invalid usage\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", world=2), "0-1", "ranks 0-1 use one GPU"),
    "BKD001 launcher": (lambda: launcher_fails("launcher-without-device"), "", "(--nproc gpu), and torch finds no GPU here"),
    "BKD004 more": (
        lambda: one_raises(*said("device-ordinal"), world=3, rank=2).set(2, variables={"CUDA_VISIBLE_DEVICES": "4,5"}), "2",
        "2 are visible (CUDA_VISIBLE_DEVICES=4,5), and it is local rank 2, so there are more ranks than GPUs",
    ),
    "BKD004 number": (
        lambda: one_raises(*said("device-ordinal")).set(1, variables={"CUDA_VISIBLE_DEVICES": "4,5"}), "1",
        "enough for its local rank 1, so it used another index",
    ),
    "BKD004": (lambda: one_raises(*said("device-ordinal")), "1", "a GPU that does not exist"),
    "BKD005": (lambda: everyone_raises("kernel-image-missing"), "0-1", "no kernels for this GPU"),
    "BKD005 driver": (lambda: everyone_raises("driver-old"), "0-1", "driver (11040) is older"),
    "BKD006": (lambda: _unstarted(*said("library-symbol-missing")), "0-1", "lacks ncclCommResume"),
    "BKD007": (lambda: one_raises(*said("peer-access-unsupported")), "1", "peer-to-peer memory access"),
    "BKD008": (lambda: everyone_raises("device-without-backend"), "0-1", "a tensor on cpu, and the group has only gloo"),
    "COL002": (lambda: _barrier(), "1", "Rank 1 never reached the barrier in which rank 0 waited at train.py:71 in main after 3 s"),
    "COL003 sizes": (
        lambda: Job(2).dies(1, 6).says_example(1, "mismatch-of-sizes").complains([0]), "0-1", "30,000 bytes where 4 were expected",
    ),
    "COL003 splits": (lambda: one_raises(*said("splits-of-own-part")), "1", "output_split_sizes of its all_to_all differ in the part"),
    "COL003 wrapper": (lambda: everyone_raises("mismatch-found-by-wrapper"), "0-1", "rank 0 runs ALLREDUCE #3 of [10] Float"),
    "COL005": (timed_out, "2", "Ranks 0-1, 3 waited in a collective at train.py:71 in main and gave up after 6 s; rank 2 reported nothing"),
    "COL005 nccl": (
        lambda: Job(2).dies(0, 6, 600).says_example(0, "nccl-timed-out").terminates([1], 601), "1", "broadcast #1",
    ),
    "COL008": (uneven, "1", "Rank 1 exited while ranks 0, 2 still waited"),
    "DDP001": (lambda: unused(range(4)), "0-3", "2 parameters received no gradient in the step before: b.weight and b.bias (of Linear b, whose forward never ran)"),
    "DDP006": (lambda: unused(range(2), 2, frozen=True), "0-1", "2 parameters were frozen after the model was wrapped"),
    "DDP001 of which one is frozen": (lambda: unused(range(2), 2, frozen=None), "0-1", "2 parameters received no gradient"),
    "DDP002": (lambda: unused([1]), "1", "on some ranks only: b.weight and b.bias (of Linear b, whose forward never ran) on rank 1; ranks 0, 2-3 used all"),
    "DDP003": (lambda: all_raise(2, "RuntimeError", TWICE.removeprefix("RuntimeError: ")), "0-1", "the gradient of a.bias twice"),
    "DDP004": (lambda: everyone_raises("graph-changed"), "0-1", "static_graph=True"),
    "DDP004 unused": (lambda: everyone_raises("graph-changed-unused"), "0-1", "static_graph=True"),
    "DDP009 counts": (models_differ, "1", "2 parameters on ranks 0, 2 and 4 parameters on rank 1"),
    "DDP009 sizes": (lambda: one_raises(*said("parameter-sizes-differ"), world=2), "1", "are [4, 5] on rank 1 and others on rank 0"),
    "DDP010": (modified_in_place, "0", "broadcasts buffers in place"),
    "DDP014": (lambda: everyone_raises("attribute-on-wrapper"), "0-1", "asked for 'generate'"),
    "DDP016": (lambda: everyone_raises("device-ids-refused"), "0-1", "device_ids=[0] with parameters on {device(type='cpu')}"),
    "DDP017": (lambda: everyone_raises("nothing-trainable"), "0-1", "without trainable parameters"),
    "CKP002": (
        lambda: one_raises("FileNotFoundError", "[Errno 2] No such file or directory: 'ckpt/last.pt'", frames=(SERIALISATION, *LOOP)), "1",
        "ckpt/last.pt missing or unfinished, ranks 0, 2-3 did not",
    ),
    "CKP002 archive": (lambda: one_raises(*said("archive-unreadable"), frames=(SERIALISATION, *LOOP)), "1", "missing or unfinished"),
    "CKP004": (lambda: all_raise(2, "RuntimeError", PREFIX), "0-1", 'saved from the wrapper and is loaded into the bare model ("module.weight")'),
    "CKP004 other way": (lambda: all_raise(2, "RuntimeError", OTHER_PREFIX), "0-1", 'saved from the bare model and is loaded into the wrapper ("module.weight")'),
    "CKP005": (lambda: _logged(one_raises(*said("directory-exists"))), "1", "another rank had made runs/exp1"),
    "CKP005 deleted": (
        lambda: _logged(one_raises("FileNotFoundError", "[Errno 2] No such file or directory: 'runs/exp1'", frames=(Frame("/usr/lib/python3.11/shutil.py", 700, "rmtree"), *LOOP))), "1", "deleted runs/exp1",
    ),
}  # fmt: skip


def _logged(job: Job) -> Job:
    """Make it a job of which there are logs alone: under `run` the ranks write down what they do with files."""
    job.launch["command"] = "analyze"
    return job


def _with_oom(job: Job) -> Job:
    job.memory.append(MemoryRecord(0, "node-a", oom_kills=1))
    return job


def _unstarted(type: str, message: str, frames: tuple[Frame, ...] = IMPORT) -> Job:
    job = Job(2)
    for rank in range(2):
        job.raises(rank, type, message, 0.5, frames).set(rank, milestones=job.processes[rank].milestones[:1])
    return job


def _unresolved(**launch: object) -> Job:
    job = Job(2, nproc=1, launch=launch)
    for rank in range(2):
        job.raises(rank, "torch.distributed.DistNetworkError", find_entry("name-unresolvable").example, 60)
    return job


def _unresolved_beside() -> Job:
    """The C++ code printed the name; the exception only tells of the time-out."""
    job = Job(2).terminates([1], 61)
    job.says(0, find_entry("name-unresolvable").example.replace("no-such-host.invalid", "node-a"))
    return job.raises(0, "torch.distributed.DistNetworkError", find_entry("client-timed-out").example, 60)


def _unreachable() -> Job:
    job = launcher_fails("rendezvous-unreachable", rdzv_endpoint="10.0.0.1:29400")
    inner = ExceptionRecord(50, "DistNetworkError", find_entry("client-timed-out").example, link="cause")
    job.exceptions[0] = replace(job.exceptions[0], chain=(inner,))
    return job


def _few_came() -> Job:
    job = Job(2, launch={"world_size": 3, "nproc": 3})
    for rank in range(2):
        job.raises(rank, *said("clients-missing"), seconds=61)
    return job


def _line(entry: str) -> Job:
    """A rank that says what a line of NCCL's or of the kernel's says, and another one that lost it."""
    job = Job(2).says(1, find_entry(entry).example).dies(1, 6, 31)
    return job.raises(0, *said("nccl-remote-error"), seconds=30)


def _blocked_watchdog() -> Job:
    job = Job(2)
    for rank in range(2):
        job.says(rank, find_entry("watchdog-stuck").example, 480).dies(rank, 6, 481 + rank)
    return job


def _fabric() -> Job:
    job = Job(4, nproc=2)
    for rank in range(4):
        job.raises(
            rank,
            "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:1, remote process exited or there was a network error\n"
            + find_entry("fabric-error").example,
            30,
        )
    return job


def _barrier() -> Job:
    return Job(2).raises(0, *said("barrier-names-ranks"), seconds=3).terminates([1], 3.5)


@pytest.mark.parametrize("name", CASES)
def test_code_is_told_with_its_ranks_and_words(name: str) -> None:
    make, ranks, words = CASES[name]
    found = cause_of(make())
    assert (found.code, str(found.ranks)) == (name.split()[0], ranks)
    assert words in found.message
    assert not set(found.ranks) & set(found.victims)


def test_an_abort_after_the_end_comes_behind_an_error_that_the_steps_show() -> None:
    aborted = cause_of(CASES["ERR010"][0]())
    wrong = replace(aborted, code="NUM001", severity="error", confidence="low")
    assert [each.code for each in order_findings([aborted, wrong], [])] == ["NUM001", "ERR010"]
    death = cause_of(CASES["ERR003"][0]())
    assert [each.code for each in order_findings([wrong, death], [])] == ["ERR003", "NUM001"]


def test_every_code_of_the_family_has_a_case_or_a_test_of_its_own() -> None:
    import ddpdoctor_checks.job.ends as family
    from ddpdoctor.judge import Registry

    registry = Registry()
    registry.add_module(family)
    own = {"CKP001", "ENV002", "ENV003", "ENV004", "ENV018", "ENV021", "NET012", "BKD009", "BKD014"}
    assert set(registry.pages) == {name.split()[0] for name in CASES} | own


def test_world_without_a_job_is_not_judged() -> None:
    import ddpdoctor_checks.job.ends as family
    from ddpdoctor.judge import Registry, run_checks

    registry = Registry()
    registry.add_module(family)
    rows, findings = run_checks(registry.checks, make_world())
    assert findings == []
    assert {each.id: each.status for each in rows} == dict.fromkeys(
        (
            "crash.cause",
            "crash.device_set",
            "crash.restarts",
            "crash.launch_size",
            "crash.address_family",
            "crash.known_defects",
        ),
        "skipped",
    )


def test_check_has_no_row_of_this_family() -> None:
    import ddpdoctor_checks
    from ddpdoctor.judge import Registry

    registry = Registry()
    ddpdoctor_checks.register(registry)
    assert not [each for each in registry.checks_of("check") if each.family == "crash"]
    assert [each for each in registry.checks_of("run") if each.family == "crash"]


SILENT: dict[str, Callable[[], Job | Evidence]] = {
    "all well": lambda: Job(4, exit_code=0),
    "victims' words in a job that went well": lambda: Job(2, exit_code=0).says_example(0, "store-unchecked").says_example(1, "gloo-peer-gone"),
    "caught and printed error": lambda: Job(2, exit_code=0).says_example(0, "device-memory").says_example(0, "files-exhausted"),
    "thread that died alone": lambda: _thread(Job(2, exit_code=0)),
    "loader worker that was caught": lambda: _thread(Job(2, exit_code=0), "worker"),
    "noise": lambda: Job(2, exit_code=0).says_example(0, "address-family").says_example(1, "group-not-destroyed"),
    "sys.exit(0)": lambda: Job(2, exit_code=0).exits(0, 0),
    "SIGTERM after the clean end": lambda: Job(2, exit_code=0).set(1, exit_code=0),
}  # fmt: skip


def _thread(job: Job, kind: str = "thread") -> Job:
    process = job.processes[0]
    job.exceptions.append(
        ExceptionRecord(process.pid, "ValueError", "odd", LOOP, rank=0, kind=kind, thread="logger", at=at(3))
    )
    return job


@pytest.mark.parametrize("name", SILENT)
def test_healthy_jobs_that_look_suspicious_are_healthy(name: str) -> None:
    findings, verdict, rows = judge(SILENT[name]())
    assert findings == []
    assert verdict.status == "healthy"
    assert {row.status for row in rows.values()} == {"pass"}


CONDITIONS: dict[str, tuple[Callable[[], Job | Evidence], str]] = {
    "key of a dictionary": (lambda: one_raises("KeyError", "'RANK'", frames=LOOP[1:]), "ERR001"),
    "port of another URL": (lambda: one_raises("ValueError", "Port out of range 0-65535", frames=LOOP[1:]), "ERR001"),
    "loopback on one node": (lambda: everyone_raises("loopback-dialled"), "BKD002"),
    "in place without buffers": (lambda: modified_in_place(buffers=()), "ERR001"),
    "in place on a cured torch": (lambda: modified_in_place(torch="2.13.0+cpu"), "ERR001"),
    "in place without a wrapper": (lambda: one_raises(*said("modified-in-place")).set(1, milestones=()), "ERR001"),
    "archive broken for all": (lambda: all_raise(2, *said("archive-unreadable")), "ERR001"),
    "directory there for all": (lambda: all_raise(3, *said("directory-exists")), "ERR001"),
    "missing file elsewhere": (lambda: one_raises("FileNotFoundError", "[Errno 2] No such file: 'x'"), "ERR001"),
    "module missing late": (lambda: one_raises("ModuleNotFoundError", "No module named 'x'"), "ERR001"),
    "loader killed without proof": (lambda: one_raises(*said("loader-killed"), world=2), "ERR005"),
    "loader gone, nobody knows why": (lambda: one_raises(*said("loader-gone"), world=2), "ERR001"),
    "reset of a download": (
        lambda: one_raises("requests.exceptions.ConnectionError", "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"), "ERR001",
    ),
    "disk full": (lambda: one_raises("OSError", "[Errno 28] No space left on device: '/data/x'"), "ERR001"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_text_counts_only_under_its_condition(name: str) -> None:
    make, code = CONDITIONS[name]
    found = judge(make())[0]
    if code == "BKD002":
        # A refused mesh on one node is a peer that is gone: nobody is blamed for it.
        assert found == []
        return
    assert found[0].code == code


def test_rows_are_one_per_judgement_and_all_of_them_pass_or_fail() -> None:
    _, _, rows = judge(one_raises("KeyError", "'x'"))
    failed: list[CheckRow] = [row for row in rows.values() if row.status == "fail"]
    assert [row.id for row in failed] == ["crash.cause"]
    assert SITE  # the frames of torch stay folded
    assert {row.status for row in rows.values()} == {"pass", "fail"}


@pytest.mark.parametrize(("applies", "status"), [(True, "unknown"), (False, "pass")])
def test_job_whose_processes_were_not_seen_is_not_fine(applies: bool, status: str) -> None:
    evidence = replace(Job(2, exit_code=0).says_example(0, "address-family").evidence(), processes=())
    unseen = replace(evidence, absent={"processes": Absent("no node checked", applicable=applies)})
    row = judge(unseen)[2]["crash.cause"]
    assert (row.status, row.reason) == (status, "no node checked" if applies else None)
