"""What a user gets: the wheel, its metadata and its entry points."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import ddpdoctor
from tests.unmeasured import unmeasured

ROOT = Path(__file__).parents[1]
PACKAGES = {"ddpdoctor": ROOT / "ddpdoctor", "ddpdoctor_checks": ROOT / "checks" / "ddpdoctor_checks"}
BUILD_LIMIT_S = 120
"""A build takes about a second; a machine that is busy or pages gets a hundred times that."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as pip would, without any index."""
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(target), str(ROOT)], capture_output=True, text=True, timeout=BUILD_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    (file,) = target.glob("ddpdoctor-*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(read_from_dist_info(wheel, "METADATA"))


def read_from_dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = [each for each in wheel.namelist() if each.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def files_of(package: str) -> set[str]:
    """Return every file of a package in the tree, as the wheel must name it."""
    directory = PACKAGES[package]
    return {
        f"{package}/{path.relative_to(directory).as_posix()}"
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_sdist_builds_the_same_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    build = "import sys; import hatchling.build; print(hatchling.build.build_sdist(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
    )
    assert made.returncode == 0, made.stderr
    (archive,) = tmp_path.glob("ddpdoctor-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(tmp_path), str(archive)],
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("ddpdoctor-*.whl")
    assert set(zipfile.ZipFile(file).namelist()) == {
        name for name in wheel.namelist() if "__pycache__" not in name
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile, package: str) -> None:
    missing = files_of(package) - set(wheel.namelist())
    assert missing == set()


def test_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {*PACKAGES, f"ddpdoctor-{ddpdoctor.__version__}.dist-info"}


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("ddpdoctor/py.typed", id="types-of-the-engine"),
        pytest.param("ddpdoctor_checks/py.typed", id="types-of-the-checks"),
        pytest.param("ddpdoctor/report/**/*.jinja", id="templates"),
        pytest.param("ddpdoctor/report/**/*schema*.json", id="schema"),
        pytest.param("ddpdoctor_checks/**/*.py", id="checks"),
        pytest.param("ddpdoctor_checks/catalogue/NUM001.md", id="catalogue"),
    ],
)
def test_wheel_holds_data_that_is_needed_when_it_runs(
    wheel: zipfile.ZipFile, tmp_path: Path, pattern: str
) -> None:
    wheel.extractall(tmp_path)
    assert list(tmp_path.glob(pattern))


def test_wheel_runs_away_from_the_source_tree(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import ddpdoctor, ddpdoctor_checks; print(ddpdoctor.__file__); print(ddpdoctor_checks.__file__)"
    # Without coverage's variables: a second copy of every module would be measured.
    environment = unmeasured() | {"PYTHONPATH": str(tmp_path)}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    assert all(line.startswith(str(tmp_path)) for line in run("-c", code).splitlines())
    assert run("-m", "ddpdoctor", "--version").split() == ["ddpdoctor", ddpdoctor.__version__]
    names = "import ddpdoctor_checks as c, ddpdoctor.judge as j; r = j.Registry(); c.register(r); print(r.pages['NUM001'].name)"
    assert run("-c", names).strip() == "replicas-diverged"


def test_version_is_the_same_everywhere(metadata: Message) -> None:
    assert metadata["Version"] == ddpdoctor.__version__
    assert importlib.metadata.version("ddpdoctor") == ddpdoctor.__version__


def test_licence_is_in_the_wheel(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in read_from_dist_info(wheel, "licenses/LICENSE")


def test_runtime_needs_four_distributions_and_no_upper_bound(metadata: Message) -> None:
    needed = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert {need.split(">")[0].strip() for need in needed} == {"jinja2", "psutil", "py-spy", "rich"}
    assert not [need for need in needed if any(mark in need for mark in ("<", "==", "~=", ","))]


def test_torch_is_an_extra_that_any_torch_fulfils(metadata: Message) -> None:
    needed = [need for need in metadata.get_all("Requires-Dist", []) if need.startswith("torch")]
    assert {need.partition(";")[0].strip() for need in needed} == {"torch"}
    assert "extra=='torch'" in {need.partition(";")[2].replace(" ", "") for need in needed}
    assert all("extra" in need for need in needed)


def test_checks_come_in_by_their_entry_point(wheel: zipfile.ZipFile) -> None:
    text = read_from_dist_info(wheel, "entry_points.txt")
    assert "builtin = ddpdoctor_checks:register" in text
    assert "ddpdoctor = ddpdoctor.cli:main" in text
