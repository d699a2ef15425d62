"""The import hook: sees a module executed, and is not seen afterwards."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.watch.injecting import python, write

MODULE = "SPEC, LOADER = __spec__, __loader__\n\n\nclass BaseProcess:\n    def _bootstrap(self):\n        return 5\n"
"""A module that takes the place of one that is patched."""

LOOK = """
    def look(module):
        spec = module.__spec__
        return (
            type(spec.loader).__name__, module.__loader__ is spec.loader, "exec_module" in getattr(spec.loader, "__dict__", {}),
            module.BaseProcess._bootstrap.__code__.co_filename.endswith("patches.py"),
        )
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a package `multiprocessing` of its own, before the standard library's."""
    package = tmp_path / "multiprocessing"
    package.mkdir()
    write(package, "", "__init__.py")
    write(package, MODULE, "process.py")
    return tmp_path


def test_a_module_is_patched_and_nothing_shows(folder: Path) -> None:
    done = python(
        folder,
        LOOK
        + "\n    import multiprocessing.process as m\n    print(look(m))\n    print(m.BaseProcess()._bootstrap())\n",
        check=False,
    )
    assert done.stdout.splitlines()[0] == "('SourceFileLoader', True, False, True)"
    assert done.stdout.splitlines()[1] == "5"


def test_a_module_that_is_loaded_again_is_patched_again(folder: Path) -> None:
    done = python(
        folder,
        LOOK
        + """
    import importlib
    import multiprocessing.process as m
    first = m.BaseProcess._bootstrap
    importlib.reload(m)
    print(look(m), m.BaseProcess._bootstrap is first)
    """,
    )
    assert done.stdout == "('SourceFileLoader', True, False, True) False\n"


def test_a_lazy_module_is_patched_when_it_is_executed(folder: Path) -> None:
    done = python(
        folder,
        LOOK
        + """
    import importlib.util, sys
    spec = importlib.util.find_spec("multiprocessing.process")
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    m = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = m
    loader.exec_module(m)
    print(look(m))
    """,
    )
    assert done.stdout == "('SourceFileLoader', True, False, True)\n"


def test_looking_for_a_module_without_importing_it_is_harmless(folder: Path) -> None:
    done = python(
        folder,
        LOOK
        + """
    import importlib.util
    print(type(importlib.util.find_spec("multiprocessing.process").loader).__name__)
    import multiprocessing.process as m
    print(look(m))
    """,
    )
    assert done.stdout.splitlines() == ["SourceFileLoader", "('SourceFileLoader', True, False, True)"]


def test_a_module_in_an_archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "lib.zip", "w") as archive:
        archive.writestr("multiprocessing/__init__.py", "")
        archive.writestr("multiprocessing/process.py", MODULE)
    shutil.rmtree(folder / "multiprocessing")
    done = python(
        folder,
        LOOK
        + """
    import sys
    sys.path.insert(0, "lib.zip")
    import multiprocessing.process as m
    print(look(m))
    """,
    )
    assert done.stdout == "('zipimporter', True, False, True)\n"


def test_a_package_without_init_and_a_finder_of_the_users(folder: Path) -> None:
    (folder / "multiprocessing" / "__init__.py").unlink()
    done = python(
        folder,
        LOOK
        + """
    import sys
    seen = []

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            seen.append(name)

    sys.modules.pop("multiprocessing", None)
    sys.meta_path.insert(0, Finder)
    sys.path[:] = [sys.path[0]]
    import multiprocessing.process as m
    print(look(m), seen.count("multiprocessing.process"))
    """,
    )
    assert done.stdout == "('SourceFileLoader', True, False, True) 1\n"


def test_a_loader_without_attributes_gets_its_place_back(folder: Path) -> None:
    done = python(
        folder,
        LOOK
        + """
    import sys
    from importlib.machinery import ModuleSpec

    class Loader:
        __slots__ = ()

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            exec(open("multiprocessing/process.py").read(), vars(module))

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return ModuleSpec(name, Loader()) if name == "multiprocessing.process" else None

    sys.meta_path.append(Finder)
    sys.modules.pop("multiprocessing.process", None)
    import multiprocessing
    multiprocessing.__path__ = []
    import multiprocessing.process as m
    print(look(m), type(m.LOADER).__name__)
    """,
    )
    assert done.stdout == "('Loader', True, False, True) Loader\n"


def test_a_module_that_fails_to_load_fails_as_ever(folder: Path) -> None:
    write(folder / "multiprocessing", "x = 1\n1 / 0\n", "process.py")
    done = python(
        folder,
        "try:\n    import multiprocessing.process\nexcept ZeroDivisionError as e:\n    print('failed')\n",
    )
    assert done.stdout == "failed\n"
    assert done.returncode == 0


def test_a_module_that_has_changed_is_left_alone_and_that_is_said(folder: Path) -> None:
    write(folder / "multiprocessing", "BaseProcess = 3\n", "process.py")
    done = python(folder, "import multiprocessing.process as m\nprint(m.BaseProcess)\n", check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)
    assert done.main().one("trouble")["where"] == "multiprocessing.process"


def test_nothing_of_ours_is_left_in_a_traceback_of_an_import(folder: Path) -> None:
    write(folder / "multiprocessing", "1 / 0\n", "process.py")
    done = python(folder, "import multiprocessing.process\n")
    assert "ddpdoctor" not in done.stderr
