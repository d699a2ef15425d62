"""Names of modules: a name says where a thing is only while it stands for one module."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

import ddpdoctor
import ddpdoctor_checks

SUBJECTS = {
    "collectives", "loads", "numerics", "resumes", "stages", "strategies", "syncs", "timeline",
}  # fmt: skip
"""What goes up through the floors and keeps its name: seen in a rank, read, evidence, judged, shown."""
ENDING = re.compile(r"(?<=..)(?:ings?|ers?|ions?|ed|es|s)$")


def list_modules() -> list[str]:
    """Return the modules outside of lint, which has one for each rule, by their paths."""
    root = Path(ddpdoctor_checks.__file__).parent
    paths = (path.relative_to(root) for path in root.rglob("*.py") if path.name != "__init__.py")
    return sorted(str(path.with_suffix("")) for path in paths if path.parts[0] != "lint")


def find_alike(paths: Iterable[str]) -> list[list[str]]:
    """Return modules whose names are the same but for a plural, an -ing, an -er or an -ed."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[ENDING.sub("", path.rpartition("/")[2]).rstrip("e")].append(path)
    return [each for each in found.values() if len(each) > 1]


def test_no_two_modules_of_the_checks_have_nearly_one_name() -> None:
    modules = list_modules()
    assert "job/blame/judging" in modules
    assert find_alike(modules) == []


@pytest.mark.parametrize(
    "name", ["samplers sampling", "loads loaders", "a/links b/links", "parts parted", "joins joining"]
)
def test_names_are_alike(name: str) -> None:
    assert find_alike(name.split()) == [name.split()]


@pytest.mark.parametrize("name", ["stalls standing", "world_sizes worlds", "wrap_errors wrappers"])
def test_names_are_not_alike(name: str) -> None:
    assert find_alike(name.split()) == []


def test_no_name_stands_for_more_than_two_modules_that_are_not_floors_of_one_subject() -> None:
    places = defaultdict(list)
    for package in (ddpdoctor, ddpdoctor_checks):
        root = Path(str(package.__file__)).parent
        for path in root.rglob("*.py"):
            if not path.name.startswith("__") and "demos" not in path.parts:
                places[path.stem].append(str(path.relative_to(root)))
    assert len(places) > 400
    often = {name: paths for name, paths in places.items() if len(paths) > 2 and name not in SUBJECTS}
    assert often == {}
    assert {name for name in SUBJECTS if len(places[name]) < 3} == set()
