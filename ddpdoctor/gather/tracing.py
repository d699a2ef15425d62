"""Whether py-spy may read the stacks of other processes here, tried without touching any process."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from ddpdoctor.gather.machine import ROOT, read_text

_CAP_SYS_PTRACE = 19  # linux/capability.h
_PTRACE_PEEKDATA = 2  # sys/ptrace.h
_PR_GET_DUMPABLE = 3  # linux/prctl.h

_GRANT = (
    "run as root, add the capability (docker run --cap-add SYS_PTRACE; "
    "Kubernetes: securityContext.capabilities.add)"
)


def explain_tracing(root: Path = ROOT) -> str | None:
    """Return one sentence: why py-spy may not read other processes here and what to grant; None when it may.

    Looked at are Yama's ptrace_scope (docs.kernel.org/admin-guide/LSM/Yama.html), the capability
    CAP_SYS_PTRACE, whether a seccomp filter refuses the two system calls that py-spy needs, and whether
    this process, whose flag its ranks inherit until they exec, is dumpable (ptrace(2)).
    """
    blocked = _blocked_calls()
    if blocked:
        calls = " and ".join(blocked)
        return f"A seccomp filter refuses {calls}: {_GRANT} or use --security-opt seccomp=unconfined."
    scope = read_text(root / "proc/sys/kernel/yama/ptrace_scope")
    if scope == "3":
        return (
            "kernel.yama.ptrace_scope is 3: tracing is disabled until the machine is booted with a "
            "lower value."
        )
    if has_capability(_CAP_SYS_PTRACE, root):
        return None
    if scope in ("1", "2"):
        return (
            f"kernel.yama.ptrace_scope is {scope} and CAP_SYS_PTRACE is missing: {_GRANT}, "
            "or sudo sysctl kernel.yama.ptrace_scope=0."
        )
    if _is_undumpable():
        return (
            f"This process is not dumpable (prctl PR_SET_DUMPABLE) and CAP_SYS_PTRACE is missing: {_GRANT}."
        )
    return None


def has_capability(number: int, root: Path = ROOT) -> bool:
    """Whether a capability is in this process's effective set (/proc/self/status, CapEff)."""
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _blocked_calls() -> list[str]:
    """Call both on this very process, where the kernel itself always allows them, to see seccomp's answer."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except OSError:
        return []
    return [
        name for name, try_call in _CALLS if try_call(library) in (errno.EPERM, errno.ENOSYS, errno.EACCES)
    ]


def _try_read(library: ctypes.CDLL) -> int:
    """Read four bytes of our own memory with process_vm_readv; return errno or 0."""

    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    source, target = ctypes.create_string_buffer(b"seen", 4), ctypes.create_string_buffer(4)
    local = Part(ctypes.addressof(target), 4)
    remote = Part(ctypes.addressof(source), 4)
    call = getattr(library, "process_vm_readv", None)
    if call is None:
        return errno.ENOSYS
    call.restype = ctypes.c_ssize_t
    length = ctypes.c_ulong(1)
    got = call(os.getpid(), ctypes.byref(local), length, ctypes.byref(remote), length, ctypes.c_ulong(0))
    return ctypes.get_errno() if got < 0 else 0


def _try_trace(library: ctypes.CDLL) -> int:
    """Peek into ourselves, which nobody traces: ESRCH when the call is let through; return errno or 0."""
    library.ptrace.restype = ctypes.c_long
    ctypes.set_errno(0)
    library.ptrace(ctypes.c_long(_PTRACE_PEEKDATA), ctypes.c_int(os.getpid()), None, None)
    return ctypes.get_errno()


_CALLS = (("process_vm_readv", _try_read), ("ptrace", _try_trace))


def _is_undumpable() -> bool:
    try:
        return int(ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False
