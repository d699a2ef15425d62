"""Which process this is: the ``start`` event."""

from __future__ import annotations

import os
import sys

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddpdoctor.facts import events, launchers
else:
    from .. import launchers

_ARGUMENTS = 200
_ARGUMENT = 4096
"""Most arguments of the command line that are kept, and most characters of each (`python -c` takes whole programs)."""

VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "NNODES",
    "NODE_RANK",
    "TORCH",
    "PYTORCH_",
    "PET_",
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "TP_SOCKET",
    "USE_LIBUV",
    "UCX_",
    "UCC_",
    "FI_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "OMP_",
    "MKL_",
    "KMP_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "MV2_",
    "I_MPI_",
    "PALS_",
    "KUBERNETES_",
    "ACCELERATE_",
    "FSDP_",
    "DEEPSPEED_",
    "PYTHON",
)
"""Beginnings of the variables that are written down; the reader has the exact list of what may be kept."""

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")

_IDENTITY = (
    "RANK",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    *(each.rank for each in launchers.LAUNCHERS),
)
"""Variables that only a rank and what it starts have in common."""

directory = ""
"""Working directory at start; relative file names of code objects mean this one."""
main_thread = 0
"""Ident of the main thread (`threading.get_ident`)."""
inherited_error_file: str | None = None
"""Error file of an ancestor: not ours to write."""


def note_start() -> events.Start:
    """Write the ``start`` event of a process that begins; return its role and rank."""
    global directory, inherited_error_file
    environment = os.environ
    inherited = _inherits_rank()
    if inherited:
        inherited_error_file = environment.get("TORCHELASTIC_ERROR_FILE")
    try:
        directory = os.getcwd()
    except OSError:
        directory = ""  # Removed under our feet.
    script, module = _main()
    place = _place(inherited, script, module)
    journal.write(
        "start",
        {
            **_ids(),
            "argv": [argument[:_ARGUMENT] for argument in _command()[:_ARGUMENTS]],
            "executable": sys.executable,
            "python": sys.version.split()[0],
            "script": script[:_ARGUMENT] if script else script,
            "module": module,
            "library": os.path.dirname(getattr(os, "__file__", "")),
            "cwd": directory,
            **place,
            "inherited": inherited,
            "variables": read_variables(*VARIABLES),
            "host": os.uname().nodename,
            "isatty": [_isatty(number) for number in (0, 1, 2)],
            "open_files": read_open_files(),
        },
    )
    return place


def note_fork() -> None:
    """Write the ``start`` event of a forked child; what it shares with its parent is not repeated."""
    global inherited_error_file
    inherited_error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    journal.write("start", {**_ids(), "forked": True, "role": "other", "inherited": True, "cwd": directory})


def read_variables(*beginnings: str) -> dict[str, str]:
    """Read the variables whose names begin so, as they are now."""
    return {name: value[:_ARGUMENT] for name, value in os.environ.items() if name.startswith(beginnings)}


def read_open_files() -> int:
    """Read the limit of open files as it is now, without opening one."""
    return os.sysconf("SC_OPEN_MAX")


def _ids() -> events.Start:
    ticks, _ = journal.read_ticks("self")
    return {"pid": os.getpid(), "ppid": os.getppid(), "start_ticks": ticks}


def _command() -> list[str]:
    arguments: list[str] | None = getattr(sys, "orig_argv", None)
    if arguments:
        return arguments
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            return [os.fsdecode(part) for part in stream.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "argv", []))


def _main() -> tuple[str | None, str | None]:
    """Tell what will be ``__main__``: the script as given (``-c`` for code), and the module of ``-m``."""
    arguments = list(getattr(sys, "argv", None) or [])
    if not arguments or arguments[0] not in ("-m", "-c"):
        return (arguments[0] or None) if arguments else None, None
    command = _command()
    if arguments[0] == "-c" or len(command) < len(arguments):
        return arguments[0], None
    # Before the program's own arguments stands the module: `-m name`, or `-mname` in one word.
    word = command[len(command) - len(arguments)]
    return None, word.partition("m")[2] if word.startswith("-") else word


def is_command() -> bool:
    """Tell whether the program is one of ``python -c``."""
    return _main()[0] == "-c"


def _place(inherited: bool, script: str | None, module: str | None) -> events.Start:
    environment = os.environ
    rank = _number("RANK")
    local_rank = _number("LOCAL_RANK")
    world_size = _number("WORLD_SIZE")
    source = "RANK" if rank is not None else None
    elastic = "TORCHELASTIC_RUN_ID" in environment and local_rank is not None
    known = (rank is not None and world_size is not None) or elastic
    if not known:
        launcher = launchers.find_launcher(environment)
        if launcher and _number(launcher.rank) is not None:
            rank, local_rank, source, known = (
                _number(launcher.rank),
                _number(launcher.local_rank),
                launcher.rank,
                True,
            )
            world_size = next((n for n in map(_number, launcher.world_size) if n is not None), world_size)
    if module in _LAUNCHER_MODULES or (script and os.path.basename(script) in _LAUNCHERS):
        role = "launcher"
    else:
        role = "rank" if known and not inherited else "other"
    return {
        "role": role,
        "rank": rank,
        "rank_source": source,
        "local_rank": local_rank,
        "world_size": world_size,
        "group_rank": _number("GROUP_RANK"),
        "attempt": _number("TORCHELASTIC_RESTART_COUNT") or 0,
        "run_id": environment.get("TORCHELASTIC_RUN_ID"),
    }


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 10 else None


def _isatty(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _inherits_rank() -> bool:
    """Tell whether a watched ancestor has the same rank's variables: then this is a rank's helper.

    The environment is inherited by everything that a rank starts; only the topmost watched process with it is
    the rank. Wrappers that are no Python (`torchrun --no-python run.sh`) lie between and are passed over.
    """
    mine = [os.environ.get(name) for name in _IDENTITY]
    if mine.count(None) == len(mine):
        return False
    pid = os.getppid()
    for _ in range(16):  # Deeper than any chain of wrappers.
        if pid < 1:
            break
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                pairs = [part.partition(b"=") for part in stream.read().split(b"\0")]
        except OSError:
            break
        theirs = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        if [theirs.get(name) for name in _IDENTITY] != mine:
            break
        ticks, parent = journal.read_ticks(pid)
        if os.path.exists(os.path.join(journal.folder(), f"{pid}-{ticks}.jsonl")):
            return True
        pid = parent
    return False
