"""Whose a file is, by its path alone and by what a process says of itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import ddpdoctor
from ddpdoctor.facts import ownership
from ddpdoctor.facts.ownership import (
    OURS,
    PACKAGE,
    PYTHON,
    TORCH,
    USER,
    Roots,
    find_owner,
    is_installed,
    trim,
)

VENV = "/home/me/project/.venv/lib/python3.11/site-packages"
LIVE = Roots(
    python=("/usr/lib/python3.11",),
    torch=(f"{VENV}/torch",),
    ours=(f"{VENV}/ddpdoctor",),
)
CHECKOUT = Roots(python=("/usr/lib/python3.11",), torch=("/home/me/pytorch/torch",))

USERS = (
    "train.py",
    "examples/torch/train.py",
    "/home/me/examples/torch/train.py",
    "torch/train.py",
    "/home/me/torch/distributed/train.py",
    "/home/me/torch/utils/data.py",
    "/home/me/torch/distributed/fsdp/train.py",
    "/home/me/ddpdoctor/train.py",
    "ddpdoctor/train.py",
    "/home/me/ddpdoctor/examples/torch/train.py",
    "/home/me/lib/python3/train.py",
    "lib/python3/train.py",
    "/home/me/python3.11/train.py",
    "/home/me/my-site-packages/train.py",
    "/home/me/site-packages.old/train.py",
    "/home/me/project/src/pkg/train.py",  # an editable install of the user's package
    "/home/me/project/train.py",  # beside the environment in the same folder
    "~/project/train.py",
    "/home/me/app.zip/train.py",
    "/home/me/frozen/train.py",
    "/home/me/torchrun/train.py",
    "/home/me/project/torchrun",
    "<stdin>",
    "<ipython-input-3-0f1e2d>",
    "/tmp/ipykernel_4711/1234567.py",
)
LIBRARIES = (
    ("python/ray/includes/common.pxi", PACKAGE),
    ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", TORCH),
    ("/opt/conda/lib/python3.11/site-packages/torch/any/thing.py", TORCH),
    ("/opt/conda/lib/python3.11/site-packages/accelerate/accelerator.py", PACKAGE),
    ("/opt/conda/lib/python3.11/site-packages/six.py", PACKAGE),
    ("/opt/conda/lib/python3.11/threading.py", PYTHON),
    ("/opt/conda/bin/torchrun", PACKAGE),
    ("/home/me/project/.venv/lib/python3.11/site-packages/numpy/core.py", PACKAGE),
    (".venv/lib64/python3.12/site-packages/torch/_ops.py", TORCH),
    ("/home/me/.local/lib/python3.10/site-packages/lightning/x.py", PACKAGE),
    ("/usr/lib/python3/dist-packages/yaml/reader.py", PACKAGE),
    ("/usr/lib/python3.13t/os.py", PYTHON),
    ("/usr/lib/pypy3.10/os.py", PYTHON),
    ("/usr/lib/python311.zip/os.py", PYTHON),
    ("C:\\env\\Lib\\site-packages\\torch\\nn\\functional.py", TORCH),
    ("/root/.pex/torch-2.4.0-cp311.whl/torch/nn/functional.py", TORCH),
    ("/opt/site-packages/old-1.0-py3.11.egg/old/x.py", PACKAGE),
    ("<frozen runpy>", PYTHON),
    ("<frozen importlib._bootstrap>", PYTHON),
    ("<string>", PYTHON),
    ("<eval_with_key>.3", PYTHON),
    ("/opt/conda/lib/python3.11/site-packages/ddpdoctor/launch/rank.py", OURS),
    ("/opt/conda/lib/python3.11/site-packages/ddpdoctor_checks/wording.py", OURS),
)


@pytest.mark.parametrize("path", USERS)
@pytest.mark.parametrize("roots", [ownership.UNKNOWN, LIVE], ids=["log", "live"])
def test_a_program_is_the_users_whatever_its_folders_are_called(path: str, roots: Roots) -> None:
    assert find_owner(path, roots) == USER


def test_what_pip_makes_for_a_package_is_the_packages() -> None:
    roots = Roots(scripts=("/home/me/env/bin", "/usr/local/bin"))
    assert find_owner("/home/me/env/bin/my-launcher", roots) == ownership.PACKAGE
    assert find_owner("/home/me/env/bin/train.py", roots) == USER
    assert find_owner("/home/me/bin/train", roots) == USER
    assert find_owner("/usr/local/bin/train", roots) == USER
    assert find_owner("/opt/bin/torchx") == ownership.PACKAGE


@pytest.mark.parametrize(("path", "owner"), LIBRARIES)
@pytest.mark.parametrize("roots", [ownership.UNKNOWN, LIVE], ids=["log", "live"])
def test_libraries_are_known_by_what_installs_them(path: str, owner: str, roots: Roots) -> None:
    assert find_owner(path, roots) == owner


def test_a_checkout_of_torch_is_torch_where_the_process_says_so() -> None:
    assert find_owner("/home/me/pytorch/torch/some/new/file.py", CHECKOUT) == TORCH
    assert find_owner("/home/me/pytorch/examples/train.py", CHECKOUT) == USER
    assert find_owner("/home/me/pytorch/examples/torch/distributed/distributed_c10d.py", CHECKOUT) == USER


def test_a_checkout_of_torch_in_a_log_is_known_by_files_that_torch_has() -> None:
    for name in (
        "distributed/distributed_c10d.py",
        "nn/modules/conv.py",
        "_ops.py",
        "utils/data/_utils/worker.py",
    ):
        assert find_owner(f"/home/me/pytorch/torch/{name}") == TORCH, name


def test_the_files_that_are_taken_for_torchs_are_torchs() -> None:
    root = Path(torch.__file__).parent
    known = {
        f"{folder}/{stem}.py".lstrip("/") for folder, stems in ownership._FILES.items() for stem in stems
    }
    missing = sorted(name for name in known if not (root / name).is_file())
    assert len(missing) <= len(known) // 20, missing  # of other versions of torch


def test_frames_of_a_job_in_torch_are_known_without_their_folder() -> None:
    files = [
        path.relative_to(Path(torch.__file__).parents[1]).as_posix()
        for folder in (
            "distributed/elastic",
            "nn/modules",
            "nn/parallel",
            "optim",
            "autograd",
            "utils/data/_utils",
        )
        for path in (Path(torch.__file__).parent / folder).rglob("*.py")
        if path.stem != "__init__"
    ]
    missed = [name for name in files if find_owner(f"/src/{name}") != TORCH]
    assert len(missed) < len(files) // 10, missed


def test_a_command_given_as_text_is_the_users_where_that_is_the_program() -> None:
    assert find_owner("<string>", Roots(command=True)) == USER


def test_every_module_of_ours_that_runs_in_a_rank_is_ours_and_the_demos_are_the_users() -> None:
    root = Path(ddpdoctor.__file__).parent
    for folder in ("launch", "watch/inject/ddpdoctor_watch", "cli"):
        for path in (root / folder).rglob("*.py"):
            whose = USER if "demos" in path.parts else OURS
            assert find_owner(str(path)) == whose, path
            assert find_owner(str(path), Roots(ours=(str(root),))) == whose, path


def test_folders_before_a_library_are_left_out() -> None:
    assert trim(f"{VENV}/torch/nn/functional.py") == "torch/nn/functional.py"
    assert trim("/usr/lib/python3.11/concurrent/futures/thread.py") == "concurrent/futures/thread.py"
    assert trim("/home/me/train.py") == "/home/me/train.py"
    assert is_installed(f"{VENV}/nvidia/nccl/lib/libnccl.so.2")
    assert not is_installed("/usr/lib/libnccl.so.2")


def test_joined_roots_know_what_each_of_them_knew() -> None:
    both = Roots(torch=("/a/torch",)).join(Roots(torch=("/b/torch",)))
    assert find_owner("/a/torch/x.py", both) == find_owner("/b/torch/x.py", both) == TORCH


def test_the_module_runs_in_any_process_of_a_job() -> None:
    tree = ast.parse(Path(ownership.__file__).read_text(), feature_version=(3, 8))
    imported = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [getattr(node, "module", None) for node in imported] == ["__future__"]
