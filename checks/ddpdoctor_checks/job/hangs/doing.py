"""What a rank outside of every collective does, by its process state, its frames and its own source line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddpdoctor.evidence.native import NativeFrame, name_native, telling_frame
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.job.hangs.reading import STOPPED
from ddpdoctor_checks.job.hangs.standing import Place


@dataclass(frozen=True, slots=True)
class Doing:
    """What a rank does that does not move."""

    kind: str
    """stopped, uninterruptible, loader, subprocess, process, lock, network, compile, checkpoint, store, rpc, device,
    compute, sleep, read or native."""
    text: str
    """What it does, as it follows "it" in a sentence."""
    fix: Fix


DEEP = 12
"""Innermost frames that say what a rank does."""
_LOADER = re.compile(r"torch/utils/data/dataloader\.py:(_try_get_data|_get_data)$")
"""Only iterators with workers have these: without them the samples are made in the rank itself."""
_BY_FRAME: tuple[tuple[str, re.Pattern[str], str, str], ...] = (
    (
        "loader",
        _LOADER,
        "waits for its DataLoader's workers",
        (
            "check what the worker does (below); set DataLoader(timeout=…) so that a hanging worker raises "
            "an error"
        ),
    ),
    (
        "rpc",
        re.compile(r"torch/distributed/rpc/"),
        "waits in torch.distributed.rpc for other workers",
        "call init_rpc on every rank with the same world_size, and shutdown() on every rank at the end; a worker that "
        "never joins is missing from both",
    ),
    (
        "store",
        re.compile(r"torch/distributed/(rendezvous\.py:|elastic/utils/store\.py:)"),
        "waits in the rendezvous store for other ranks",
        "start all ranks that the store waits for (world_size), with the same address and port",
    ),
    (
        "filelock",
        re.compile(r"torch/utils/file_baton\.py:wait$"),
        "waits for the lock file of an extension that another process builds",
        "if no process builds it any more, the lock file is stale: delete the file `lock` in the build "
        "directory",
    ),
    (
        "subprocess",
        re.compile(r"(^|/)subprocess\.py:(wait|_wait|communicate|_communicate|_try_wait)"),
        "waits for a subprocess",
        "add a timeout: subprocess.run(…, timeout=600)",
    ),
    (
        "process",
        re.compile(r"multiprocessing/(popen_\w+|process|connection|pool)\.py:(wait|poll|join|_wait|recv|_recv)"),
        "waits for a child process",
        "join with a timeout, and check what that process does",
    ),
    (
        "filelock",
        re.compile(r"(^|/)(filelock/\w+|fasteners/\w+|portalocker/\w+|zc/lockfile/\w+)\.py:"
                   r"(acquire|_acquire|lock|__enter__|wait)"),
        "waits for a lock file",
        "take it on one rank while the other ranks wait in a barrier, and add a timeout",
    ),
    (
        "lock",
        re.compile(r"(^|/)(threading|queue|multiprocessing/synchronize|multiprocessing/queues)\.py:"
                   r"(acquire|wait|join|get|put|__enter__|_wait_for_tstate_lock)"),
        "waits for a lock, a queue or a thread of its own",
        "find the lock holder; a lock held by a rank blocked in a collective is never released (deadlock)",
    ),
    (
        "network",
        re.compile(r"(^|/)(socket|ssl|http/client|urllib3/\w+|requests/\w+|aiohttp/\w+|botocore/\w+|fsspec/\w+)\.py:"),
        "waits for the network",
        "add a timeout to the request, and download on one rank while the others read the copy",
    ),
    (
        "compile",
        re.compile(r"torch/_inductor/(compile_fx|codecache|async_compile|graph|scheduler|lowering|cpp_builder)\.py:|"
                   r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py:|"
                   r"triton/(compiler|backends|runtime/build)"),
        "compiles",
        "compile before the first collective on all ranks, or raise the process-group timeout",
    ),
    (
        "checkpoint",
        re.compile(r"torch/(serialization|distributed/checkpoint/)"),
        "writes or reads a checkpoint",
        "raise the process-group timeout to cover the write, or write in the background",
    ),
)  # fmt: skip
"""What the innermost frames say: the first that fits. torch/_dynamo/eval_frame.py is no sign of a compiler at work: it
stays on the stack of whatever a compiled function calls."""
FIRST = 4
"""First rows of `_BY_FRAME`, which count wherever their frame stands: they wait by way of a queue, an event or a
program."""
_SLEEP = re.compile(r"\bsleep\s*\(")
_READ = re.compile(
    r"\b(open|read|readline|readlines|recv|accept|load|input)\s*\(|\bstdin\b|for \w+ in \w*(file|fifo|stdin)"
)
_FLOCK = re.compile(r"\b(flock|lockf)\s*\(")
_LOCK = re.compile(r"\.(acquire|wait|join|get)\s*\(|^with \w*lock")
_STORE = re.compile(r"store\w{0,60}\.(get|wait|multi_get)\s*\(", re.I)
_OPENS_STORE = re.compile(r"\b(TCPStore|FileStore)\s*\(")
_STORE_WORK = re.compile(r"c10d::(\w*Store|detail::TCPClient|TCPClient)\b")
"""Names of torch's C++ in which a rank talks to a store, whatever its variable is called."""
_KEY = re.compile(r"""\(\s{0,20}\[?\s{0,20}f?(["'])(?P<key>[^"']{1,80})\1""")
STORE_FIX = Fix(
    "set the key on the rank that knows it before the other ranks wait for it, and add a timeout",
    code="store.wait([key], timedelta(minutes=5))",
)


def describe_doing(place: Place) -> Doing:
    """Return what a rank outside of every collective does, by its process state, its frames and its own line."""
    stand = place.stand
    if stand.state in STOPPED:
        return Doing("stopped", "is stopped by a signal (SIGSTOP, or a debugger)",
                     Fix("resume it", command=f"kill -CONT {stand.pid}"))  # fmt: skip
    if stand.state == "D":
        return Doing("uninterruptible", "is in an uninterruptible wait of the kernel (a disk or a network file system)",
                     Fix((
                         "check the file system that it uses"
                     ), command=f"cat /proc/{stand.pid}/stack"))  # fmt: skip
    texts = [f"{frame.file}:{frame.function}" for frame in stand.frames[:DEEP]]
    for rows in (_BY_FRAME[:FIRST], _BY_FRAME):
        for text in texts:
            for kind, pattern, what, fix in rows:
                if pattern.search(text):
                    return Doing(kind, what, Fix(fix))
    native = telling_frame(stand.native)
    if place.kind == "device":
        return Doing(
            "device",
            "waits for its device",
            Fix(
                "find out what it has queued there: a collective of torch's C++ (of a DTensor, say) that the other "
                "ranks do not issue is not recorded",
                command=f"py-spy dump --native --pid {stand.pid}",
            ),
        )
    if place.moved:
        inside = f", in {name_native(native)}," if native is not None else ""
        return Doing(
            "compute",
            f"computes on one line{inside} and does not return",
            Fix("find out what it computes", command=f"py-spy dump --native --locals --pid {stand.pid}"),
        )
    return _read_line(place, native)


def _read_line(place: Place, native: NativeFrame | None) -> Doing:
    """Return what a rank does that stands below a line of its own, by its text and by the native frames."""
    stand = place.stand
    own = user_line(stand.frames)
    source = (own.source or "") if own is not None else ""
    store = _find_store(source, stand.native)
    if store is not None:
        return store
    if _SLEEP.search(source):
        return Doing(
            "sleep",
            "sleeps",
            Fix(
                "the other ranks are blocked meanwhile: make all ranks sleep, or wait on the actual event "
                "instead of sleeping"
            ),
        )
    if _FLOCK.search(source) or any(not lock.held for lock in stand.locks):
        return Doing("filelock", "waits for a lock on a file",
                     Fix("find the lock holder, and add a timeout"))  # fmt: skip
    if _READ.search(source):
        return Doing("read", "is blocked in a read without data",
                     Fix(
                         "check what it reads from: a pipe without a writer, a dead mount, a server"
                     ))  # fmt: skip
    if _LOCK.search(source):
        return Doing("lock", "waits for a lock, a queue or a thread of its own",
                     Fix("find the lock holder, and add a timeout"))  # fmt: skip
    if native is not None:
        return Doing(
            "native",
            f"is blocked in {name_native(native)}",
            Fix(f"check what {name_native(native)} waits for, and add a timeout"),
        )
    return Doing(
        "native",
        "makes no progress",
        Fix("check its native stack", command=f"ddpdoctor attach --native {stand.pid}"),
    )


def _find_store(source: str, native: tuple[NativeFrame, ...]) -> Doing | None:
    """Return what a rank waits for in a store; None where it does not."""
    if _OPENS_STORE.search(source):
        return Doing(
            "store",
            "waits for other ranks to connect to the store",
            Fix(
                "start all ranks that the store waits for (world_size), with the same address and port; one "
                "of them has is_master=True"
            ),
        )
    if not _STORE.search(source) and not any(_STORE_WORK.search(frame.function) for frame in native):
        return None
    found = _KEY.search(source)
    key = f'the key "{found["key"]}"' if found is not None else "a key"
    return Doing("store", f"waits for {key} of the store, which no rank has set", STORE_FIX)
