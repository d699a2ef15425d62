"""torch's Flight Recorder, made to answer whoever watches: also while this process holds the interpreter's lock.

torch's own worker server answers from C++ threads, over a socket in the private directory of the run. Made as usual it
would print a line when it starts and when it ends, hold descriptors of the program's, and be open in its forked
children. So it is started by a thread that has a table of descriptors to itself, empty but for /dev/null: the server's
threads inherit that table. It is never shut down: the process ends over it, as over any thread that sleeps.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, start_new_thread

from ..core import journal, lifetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAIT_S = 2.0
"""Seconds to wait for the worker server to start, which takes a millisecond."""
SETTLING_S = 0.05
"""At most, for the threads of the server; a torch that does not name them as this one does takes all of it."""
_NAME = "pt_workerserver"
LONGEST = 107
"""Bytes of the path of a socket (unix(7))."""
FEW_CPUS = 8
"""The server starts as many threads as there are processors that its maker may use, 8 at least, and one more."""
MOST_THREADS = 32
"""Older C libraries count all processors."""
SPARE = 6
"""Threads that must be to be had beyond those that it starts: C++ ends the process where one cannot be had."""
_NO_ROOM = "there is no room for its threads"
_SEMAPHORE = 8
"""Words; a sem_t has 4."""
_ATTRIBUTES = 16
"""Words; a pthread_attr_t has 7 or 8."""
_PROT_NONE, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 0, 0x02, 0x20, 0x4000
"""Protection and flags of mmap(2), the same on x86-64 and on 64-bit Arm (mman.h)."""
_CLOSE_RANGE = 436
"""The number of close_range(2), the same on all machines since it came with Linux 5.9; Python knows no such call."""
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_EVERY = 0xFFFFFFFF

_started = 0
"""Id of the process in which the server was started, or was to be; 0 for none."""
_path = ""


def start() -> None:
    """Start the server, once in each process; what keeps it from that is written down."""
    global _started, _path
    if _started == os.getpid():
        return
    _started, _path = os.getpid(), ""
    path = _choose_path()
    problem = _start(path) if path else "there is no private directory for its socket"
    if problem is None:
        _path = path
        journal.write("recorder", {"socket": path})
    else:
        journal.write("recorder", {"problem": problem[:500]})


@lifetime.at(lifetime.ENDED)
def close() -> None:
    """Let nobody ask any more: the process ends."""
    global _path
    path, _path = _path, ""
    # The supervisor may have removed it, or who tidies up after it.
    if path and _started == os.getpid() and os.path.exists(path):
        os.unlink(path)


def _choose_path() -> str:
    """Return where the supervisor will ask: beside its own sockets, which only this user can reach."""
    folder = os.path.dirname(os.environ.get("DDPDOCTOR_STREAMS", "").partition("|")[0])
    ticks, _ = journal.read_ticks("self")
    path = os.path.join(folder, f"fr-{os.getpid()}-{ticks}")
    try:
        status = os.stat(folder)
    except OSError:
        return ""  # Another host, or the supervisor has ended.
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return path if private and len(os.fsencode(path)) <= LONGEST else ""


def _start(path: str) -> str | None:
    """Return why there is no server; None where there is one."""
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    if server is None:
        return "this torch has no worker server"
    if not sys.platform.startswith("linux"):
        return "a thread cannot have descriptors of its own here"
    import ctypes
    import gc
    import signal

    if os.path.exists(path):
        os.unlink(path)  # Of this process, before an exec.
    # Not CDLL: it would let other threads run in the middle, and Python must do nothing there but what stands below.
    library = ctypes.PyDLL(None, use_errno=True)
    keep = ctypes.pythonapi.Py_IncRef
    done = allocate_lock()
    done.acquire()
    problems: list[str] = []
    made: list[int] = []

    def make() -> None:
        try:
            _block_signals(signal)
            _choose_cpu()
            threads = max(FEW_CPUS, library.get_nprocs() - 1) + 1
            if threads > MOST_THREADS:
                problems.append(f"the worker server would start {threads} threads here")
                return
            if not _has_room(ctypes, library, threads + SPARE):
                problems.append(_NO_ROOM)
                return
            shared = [int(name) for name in os.listdir("/proc/thread-self/fd")]
            collects = gc.isenabled()
            gc.disable()  # A file of the program's that is freed here would never be closed.
            try:
                if not _part_descriptors(ctypes, library, shared):
                    problems.append(f"no descriptors of its own: {os.strerror(ctypes.get_errno())}")
                    return
                for _ in range(3):
                    library.open(b"/dev/null", os.O_RDWR)
                keep(ctypes.py_object(server(path, -1)))
                made.append(threads)
            finally:
                if collects:
                    gc.enable()
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {error}")
        finally:
            done.release()

    try:
        start_new_thread(make, ())
    except RuntimeError:
        return _NO_ROOM
    if not done.acquire(True, WAIT_S):
        return f"the worker server did not start within {WAIT_S:.0f} s"
    for threads in made:
        _wait_for_threads(threads)
    return problems[0] if problems else None


def _wait_for_threads(count: int) -> None:
    """Give the server the moment that it needs to start its own threads: the program may use up the room for them."""
    until = time.monotonic() + SETTLING_S
    while time.monotonic() < until:
        names = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except OSError:  # it has ended
                continue
        if names.count(_NAME) >= count:
            return
        time.sleep(0.0005)


def _block_signals(signal: Any) -> None:
    """Leave signals to the program's threads: the server's inherit what is blocked here."""
    own = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - own)


def _choose_cpu() -> None:
    """On a machine with many processors let this thread use but one, so that the server makes but 8 threads."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > FEW_CPUS + 1:
        os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})


def _has_room(ctypes: Any, library: Any, count: int) -> bool:
    """Try whether so many threads can be had at once, by limits of processes and of memory: each waits for all.

    Room for their stacks is tried first, and given back: of threads that have ended the C library keeps the stacks,
    and where there is too little room the program would be left with none.
    """
    if not _has_room_for_stacks(ctypes, library, count):
        return False
    threads = (ctypes.c_ulong * count)()
    gate = (ctypes.c_ulong * _SEMAPHORE)()
    if library.sem_init(ctypes.byref(gate), 0, 0) != 0:
        return False
    wait = ctypes.cast(library.sem_wait, ctypes.c_void_p)
    started = 0
    for place in range(count):
        thread = ctypes.byref(threads, place * ctypes.sizeof(ctypes.c_ulong))
        if library.pthread_create(thread, None, wait, ctypes.byref(gate)) != 0:
            break
        started += 1
    for _ in range(started):
        library.sem_post(ctypes.byref(gate))
    for place in range(started):
        library.pthread_join(ctypes.c_ulong(threads[place]), None)
    return started == count


def _has_room_for_stacks(ctypes: Any, library: Any, count: int) -> bool:
    attributes = (ctypes.c_ulong * _ATTRIBUTES)()
    size = ctypes.c_size_t()
    if library.pthread_getattr_default_np(ctypes.byref(attributes)) != 0:
        return False
    library.pthread_attr_getstacksize(ctypes.byref(attributes), ctypes.byref(size))
    library.pthread_attr_destroy(ctypes.byref(attributes))
    library.mmap.restype = ctypes.c_void_p
    length = ctypes.c_size_t(size.value * count)
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    room = library.mmap(None, length, _PROT_NONE, flags, -1, ctypes.c_long(0))
    if room == ctypes.c_void_p(-1).value:
        return False
    library.munmap(ctypes.c_void_p(room), length)
    return True


def _part_descriptors(ctypes: Any, library: Any, shared: list[int]) -> bool:
    """Give the calling thread an empty table of descriptors; the program's stay as they are."""
    if library.syscall(_CLOSE_RANGE, ctypes.c_uint(0), ctypes.c_uint(_EVERY), _CLOSE_RANGE_UNSHARE) == 0:
        return True
    if library.unshare(_CLONE_FILES) != 0:
        return False
    for number in shared:
        library.close(number)
    return True
