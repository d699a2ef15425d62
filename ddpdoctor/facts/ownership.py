"""Whose a file is by its path: the user's, an installed package's, torch's, Python's or ddpdoctor's.

Where the process can be asked, it says which folders are Python's, torch's and ddpdoctor's (`Roots`). Of a log only
the text of a path is known. There a library is recognized by what installs it (``site-packages/NAME/``,
``lib/python3.N/``) and torch in a source checkout by files that torch has, never by a folder that is called so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

USER = "user"
PACKAGE = "package"
TORCH = "torch"
PYTHON = "python"
"""The standard library, and code that no file holds."""
OURS = "ours"

_PACKAGES = ("site-packages", "dist-packages")
_ARCHIVES = (".whl", ".egg")
"""Folders, or zip files, that installers make for one package."""
_OWN_PACKAGES = ("ddpdoctor", "ddpdoctor_checks", "ddpdoctor_watch")
_OWN_ROOMS = ("cli", "evidence", "facts", "gather", "judge", "launch", "report", "source", "text", "watch")
_DEMOS = "ddpdoctor/cli/demos/"
"""Programs as users write them."""
_CONSOLE_SCRIPTS = ("torchrun", "torchx", "ray", "accelerate", "accelerate-launch", "deepspeed", "horovodrun")
"""What pip makes for a launcher in a ``bin`` folder, outside of site-packages."""
_SHARED_BINS = ("/bin/", "/usr/bin/", "/usr/local/bin/")
"""Folders of programs in which users put their own beside those of packages."""
_TYPED = ("<stdin>", "<console>", "<input>", "<ipython-input-")
"""What a user typed: at a prompt, or into a cell of a notebook."""
_COMPILED = (".pyx", ".pxi", ".pxd")
"""Cython's sources, which tracebacks name relative to where the package was built; Python code calls what they make."""
_COMMAND = "<string>"
"""``python -c``, but also what dataclasses and namedtuples generate."""


class Roots:
    """Folders that a process says are Python's, torch's and ddpdoctor's own.

    Args:
        python: of the standard library.
        torch: of the package torch.
        ours: of the package ddpdoctor.
        scripts: beside the interpreter, where pip puts the console scripts of packages; those of a system hold
            users' own programs too and are left out.
        command: the program is one of ``python -c``, so that code without a file is the user's.
    """

    def __init__(
        self,
        python: Iterable[str] = (),
        torch: Iterable[str] = (),
        ours: Iterable[str] = (),
        scripts: Iterable[str] = (),
        command: bool = False,
    ) -> None:
        self.python, self.torch, self.ours = _close(python), _close(torch), _close(ours)
        self.scripts = tuple([folder for folder in _close(scripts) if folder not in _SHARED_BINS])
        self.command = command

    @property
    def folders(self) -> tuple[tuple[str, ...], ...]:
        """All of them, by kind."""
        return self.python, self.torch, self.ours, self.scripts

    def join(self, other: Roots) -> Roots:
        """Return the folders of both."""
        return Roots(
            self.python + other.python,
            self.torch + other.torch,
            self.ours + other.ours,
            self.scripts + other.scripts,
            self.command or other.command,
        )


def _close(folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders so that they are beginnings of the paths below them, each once."""
    return tuple(dict.fromkeys([each.rstrip("/") + "/" for each in folders if each.rstrip("/")]))


UNKNOWN = Roots()
"""Nothing can be asked: the paths decide."""


def find_owner(path: str, roots: Roots = UNKNOWN) -> str:
    """Return whose a file is.

    Args:
        path: As a frame names it; absolute, or relative to the working directory.
        roots: What the process says of itself.
    """
    if path.startswith("<"):
        typed = path.startswith(_TYPED) or (roots.command and path == _COMMAND)
        return USER if typed else PYTHON
    path = path.replace("\\", "/")
    if path.endswith(_COMPILED):
        return PACKAGE
    if roots.ours and path.startswith(roots.ours):
        return USER if _DEMOS in path else OURS
    parts = path.split("/")
    package = _find_package(parts)
    if package is not None:
        return TORCH if package == "torch" else OURS if package in _OWN_PACKAGES else PACKAGE
    if path.startswith(roots.torch) or (not roots.torch and _is_torch(parts)):
        return TORCH
    if path.startswith(roots.python) or _is_python(parts):
        return PYTHON
    if not roots.ours and _is_ours(path, parts):
        return OURS
    if parts[-1] in _CONSOLE_SCRIPTS and parts[-2:-1] == ["bin"]:
        return PACKAGE
    if "." not in parts[-1] and path[: -len(parts[-1])] in roots.scripts:
        return PACKAGE
    return USER


def is_installed(path: str) -> bool:
    """Whether a file lies where pip, conda or a distribution put packages."""
    return _find_package(path.replace("\\", "/").split("/")) is not None


def trim(path: str) -> str:
    """Return the path of a library's file without the folders before the library: ``torch/nn/modules/module.py``.

    Of a file of the standard library what comes after its folder; of other files the path as it is.
    """
    parts = path.replace("\\", "/").split("/")
    for number in range(len(parts) - 2, -1, -1):
        if parts[number] in _PACKAGES or parts[number].endswith(_ARCHIVES):
            return "/".join(parts[number + 1 :])
    number = _find_python(parts)
    return "/".join(parts[number:]) if number else path


def _find_package(parts: list[str]) -> str | None:
    """Return the name of the package or module that a file belongs to; None where it is not an installed one's."""
    for number in range(len(parts) - 2, -1, -1):
        if parts[number] in _PACKAGES or parts[number].endswith(_ARCHIVES):
            name = parts[number + 1]
            return name[:-3] if name.endswith(".py") else name
    return None


def _is_python(parts: list[str]) -> bool:
    return _find_python(parts) > 0


def _find_python(parts: list[str]) -> int:
    """Return where the path within the standard library begins; 0 where none does."""
    for number in range(len(parts) - 2, -1, -1):
        name = parts[number]
        if name.endswith(".zip") and name.startswith("python3") and name[7:-4].isdigit():
            return number + 1
        if number and parts[number - 1] in ("lib", "lib64"):
            for kind in ("python3.", "pypy3."):
                if name.startswith(kind) and name[len(kind) :].rstrip("t").isdigit():
                    return number + 1
    return 0


def _is_ours(path: str, parts: list[str]) -> bool:
    if "ddpdoctor_watch" in parts[:-1] or "ddpdoctor_checks" in parts[:-1]:
        return True
    return _DEMOS not in path and any(
        parts[number] in _OWN_ROOMS and parts[number - 1] == "ddpdoctor"
        for number in range(1, len(parts) - 1)
    )


def _is_torch(parts: list[str]) -> bool:
    """Whether the last folder called torch is torch itself: the rest of the path is a file that torch has."""
    for number in range(len(parts) - 2, -1, -1):
        if parts[number] == "torch":
            return _has_torch(parts[number + 1 :])
    return False


def _has_torch(rest: list[str]) -> bool:
    stem = rest[-1][:-3] if rest[-1].endswith(".py") else rest[-1]
    if len(rest) > 1 and (rest[0] in _INTERNAL or "/".join(rest[:2]) in _INTERNAL):
        return True
    stems = _FILES.get("/".join(rest[:-1]))
    return stems is not None and (stem in stems or (stem.startswith("_") and not stem.startswith("__main")))


_INTERNAL = frozenset(
    "_C _custom_op _decomp _dispatch _dynamo _export _functorch _higher_order_ops _inductor _library _logging _numpy"
    " _prims _prims_common _refs _strobelight _subclasses _vendor distributed/_composable distributed/_shard"
    " distributed/_symmetric_memory distributed/_tensor distributed/elastic distributed/launcher nn/modules"
    " utils/_sympy utils/datapipes".split()
)
"""Folders of torch of which nobody has one of his own beside a folder ``torch``."""
_FILES = {
    folder: frozenset(stems.split())
    for folder, stems in {
        "": "functional hub library overrides quasirandom random return_types serialization storage torch_version"
        " _compile _jit_internal _ops _tensor _tensor_str _utils _utils_internal _weights_only_unpickler",
        "amp": "autocast_mode grad_scaler",
        "autograd": "anomaly_mode forward_ad function functional grad_mode gradcheck graph profiler variable",
        "cuda": "comm graphs jiterator memory nccl nvtx random streams",
        "distributed": "argparse_util c10d_logger collective_utils device_mesh distributed_c10d launch"
        " logging_handlers remote_device rendezvous run",
        "distributed/algorithms": "join",
        "distributed/checkpoint": "api default_planner filesystem format_utils hf_storage logging_handlers planner"
        " planner_helpers resharding staging state_dict state_dict_loader state_dict_saver stateful",
        "distributed/fsdp": "fully_sharded_data_parallel sharded_grad_scaler wrap",
        "distributed/nn": "functional",
        "distributed/optim": "apply_optimizer_in_backward named_optimizer post_localSGD_optimizer"
        " zero_redundancy_optimizer",
        "distributed/pipelining": "microbatch schedules stage",
        "distributed/rpc": "api backend_registry rref_proxy server_process_global_profiler",
        "distributed/tensor": "device_mesh placement_types",
        "distributed/tensor/parallel": "api fsdp loss style",
        "export": "dynamic_shapes exported_program graph_signature unflatten",
        "fx": "graph graph_module interpreter proxy subgraph_rewriter",
        "jit": "frontend",
        "multiprocessing": "pool queue reductions spawn",
        "nn": "functional init parameter",
        "nn/attention": "bias flex_attention",
        "nn/parallel": "comm data_parallel distributed parallel_apply replicate scatter_gather",
        "nn/utils": "clip_grad convert_parameters parametrizations parametrize prune spectral_norm stateless"
        " weight_norm",
        "optim": "adadelta adagrad adam adamax adamw asgd lbfgs lr_scheduler nadam optimizer radam rmsprop rprop sgd"
        " sparse_adam swa_utils",
        "profiler": "itt profiler python_tracer",
        "utils": "backend_registration checkpoint cpp_extension deterministic dlpack file_baton flop_counter hooks"
        " module_tracker weak",
        "utils/data": "dataloader dataset distributed sampler",
        "utils/data/_utils": "collate fetch pin_memory signal_handling worker",
    }.items()
}
"""Files of torch that stand in stacks; those that any program may have (``utils.py``, ``config.py``) are not here."""
