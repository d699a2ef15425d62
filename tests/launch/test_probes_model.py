from __future__ import annotations

import os
import sys
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.evidence import Launch, ModelResult, RankSet, UserError
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.model.factory import FactoryError, is_own, load_factory, move
from ddpdoctor.launch.probes.model.probe import find_loss, probe_model
from tests.launch.worlds import World, run_world

PREAMBLE = """
import torch
from torch import nn
import torch.distributed as dist
"""


def examine(tmp_path: Path, source: str, ranks: int = 2, name: str = "factory", **changes: Any) -> World:
    """Examine ``factory`` of a file with that source, from its directory."""
    project = tmp_path / "project"
    project.mkdir(parents=True)
    (project / "user_model.py").write_text(PREAMBLE + textwrap.dedent(source))
    launch = Launch(nproc=ranks, world_size=ranks, model=f"user_model.py:{name}")
    work = tmp_path / "work"
    work.mkdir()
    os.environ["TEST_PROJECT"] = str(project)
    changes.setdefault("launch", launch)
    return run_world(in_project(project), ranks, work, **changes)


class in_project:  # used like a function
    """A picklable probe that enters the user's directory first."""

    def __init__(self, project: Path) -> None:
        self.project = project

    def __call__(self, ctx: RankContext) -> None:
        os.chdir(self.project)
        probe_model(ctx)


def only_row(world: World) -> ModelResult:
    assert world.errors == {}
    (row,) = world.evidence.model
    return row


def only_error(world: World) -> UserError:
    (error,) = only_row(world).errors
    return error


HEALTHY = """
    def factory():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        return model, torch.randn(4, 8)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_that_uses_everything_needs_no_search(ranks: int, tmp_path: Path) -> None:
    row = only_row(examine(tmp_path, HEALTHY, ranks))
    assert row.factory == "user_model.py:factory"
    assert row.ranks == RankSet.span(ranks)
    assert row.errors == ()
    assert row.unused == ()
    assert (row.find_unused_needed, row.static_graph_ok, row.steps) == (False, True, 3)
    assert (row.parameters, row.trainable, row.parameter_bytes) == (178, 178, 712)
    assert row.buckets == 1
    assert row.step_s is not None
    assert row.step_s_with_search is not None
    assert row.facts["world_size"] == ranks


FORKED = """
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.heads = nn.ModuleDict({"kept": nn.Linear(4, 2), "idle": nn.Linear(4, 3)})
            self.cut = nn.Linear(4, 1)
            self.scale = nn.Parameter(torch.ones(5))
            self.frozen = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x):
            hidden = self.frozen(self.body(x))
            return {"logits": self.heads["kept"](hidden), "aux": self.cut(hidden).detach()}

    def factory():
        return Fork(), {"x": torch.randn(2, 4)}
"""


def test_unused_parameters_are_named_with_their_modules(tmp_path: Path) -> None:
    row = only_row(examine(tmp_path, FORKED))
    found = {each.name: (each.module, each.module_class, each.forward_ran, each.count) for each in row.unused}
    assert found == {
        "scale": ("", "Fork", True, 5),
        "heads.idle.weight": ("heads.idle", "Linear", False, 12),
        "heads.idle.bias": ("heads.idle", "Linear", False, 3),
        "cut.weight": ("cut", "Linear", True, 4),
        "cut.bias": ("cut", "Linear", True, 1),
    }
    assert all(each.ranks == RankSet.span(2) for each in row.unused)
    assert (row.find_unused_needed, row.static_graph_ok) == (True, True)
    assert row.step_s is None
    assert row.step_s_with_search is not None
    assert row.trainable == row.parameters - 20


ON_ONE_RANK = """
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.image = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.text(x) + self.image(x) if dist.get_rank() != 1 else self.text(x)

    def factory():
        return Fork(), (torch.randn(2, 4),)
"""


def test_parameters_unused_on_one_rank_only_name_that_rank(tmp_path: Path) -> None:
    row = only_row(examine(tmp_path, ON_ONE_RANK, 3))
    assert {each.name: each.ranks for each in row.unused} == {
        "image.weight": RankSet([1]),
        "image.bias": RankSet([1]),
    }
    assert row.find_unused_needed
    assert row.step_s is None


CHANGING = """
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

        def forward(self, x, which):
            return self.branches[which](x).sum()

    calls = 0

    def inputs():
        global calls
        calls += 1
        return (torch.randn(2, 4), calls % 2)

    def factory():
        return Turns(), inputs
"""


def test_a_graph_that_changes_between_steps_is_not_static(tmp_path: Path) -> None:
    row = only_row(examine(tmp_path, CHANGING))
    assert row.static_graph_ok is False
    assert len(row.unused) == 4


def test_a_slow_model_is_run_once(tmp_path: Path) -> None:
    row = only_row(examine(tmp_path, HEALTHY, model_limit=1e-6))
    assert (row.steps, row.static_graph_ok) == (1, None)
    assert row.step_s is not None


RAISES = {
    "import": (
        "raise ValueError('broken at import')\n",
        "ValueError",
        "raise ValueError('broken at import')",
    ),
    "factory": (
        """
        def build():
            return {}["width"]

        def factory():
            return build(), None
        """,
        "KeyError",
        'return {}["width"]',
    ),
    "forward": (
        """
        class Bad(nn.Linear):
            def forward(self, x):
                return super().forward(x.unsqueeze(9))

        def factory():
            return Bad(3, 3), torch.ones(2, 3)
        """,
        "IndexError",
        "return super().forward(x.unsqueeze(9))",
    ),
    "backward": (
        """
        class Refuse(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ArithmeticError("no way back")

        class Bad(nn.Linear):
            def forward(self, x):
                return Refuse.apply(super().forward(x))

        def factory():
            return Bad(3, 3), torch.ones(2, 3)
        """,
        "ArithmeticError",
        'raise ArithmeticError("no way back")',
    ),
}


@pytest.mark.parametrize("step", list(RAISES))
def test_errors_of_the_user_are_shown_with_their_line(step: str, tmp_path: Path) -> None:
    source, kind, line = RAISES[step]
    error = only_error(examine(tmp_path, source))
    assert (error.kind, error.step, error.type) == ("raised", step, kind)
    assert error.file == "user_model.py"
    assert error.source == line
    assert error.line is not None
    assert error.ranks == RankSet.span(2)


def test_an_error_inside_a_library_falls_back_to_the_factory(tmp_path: Path) -> None:
    source = """
        def factory():
            return nn.Linear(3, 3), torch.ones(2, 5)
    """
    error = only_error(examine(tmp_path, source))
    assert (error.step, error.type) == ("forward", "RuntimeError")
    assert (error.file, error.function, error.source) == ("user_model.py", "factory", "def factory():")
    assert "cannot be multiplied" in error.message


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    error = only_error(examine(tmp_path, "def factory(:\n    pass\n"))
    assert (error.step, error.type, error.file, error.line) == ("import", "SyntaxError", "user_model.py", 5)
    assert error.source == "def factory(:"


@pytest.mark.parametrize(
    ("source", "kind", "step", "text"),
    [
        ("def fatcory():\n    pass\n", "missing", "import", "did you mean 'fatcory'?"),
        ("factory = 3\n", "wrong-type", "import", "is a int, expected a function"),
        ("def factory():\n    pass\n", "wrong-type", "factory", "it returned None, expected"),
        ("def factory():\n    return nn.Linear(2, 2)\n", "wrong-type", "factory", "it returned a Linear"),
        ("def factory():\n    return 1, 2\n", "wrong-type", "factory", "a tuple of 2: int, int"),
        (
            "def factory():\n    return nn.ReLU(), torch.ones(2)\n",
            "not-trainable",
            "wrap",
            "requires a gradient",
        ),
        (
            "def factory():\n    return nn.Linear(2, 2), 'x'\n",
            "wrong-type",
            "factory",
            "the inputs are a str",
        ),
        (
            "class M(nn.Linear):\n    def forward(self, x):\n        return 'text'\n\n"
            "def factory():\n    return M(2, 2), torch.ones(1, 2)\n",
            "wrong-output",
            "forward",
            "the output, a str, has no floating-point tensor",
        ),
        ("def factory():\n    raise SystemExit(3)\n", "raised", "factory", "3"),
        ("import no_such_library\n", "raised", "import", "No module named 'no_such_library'"),
    ],
)
def test_a_factory_that_is_not_one_is_told_so(
    source: str, kind: str, step: str, text: str, tmp_path: Path
) -> None:
    error = only_error(examine(tmp_path, source, ranks=1))
    assert (error.kind, error.step) == (kind, step)
    assert text in error.message


def test_an_error_on_one_rank_stops_the_others_without_waiting(tmp_path: Path) -> None:
    source = """
        def factory():
            if dist.get_rank() == 1:
                raise FileNotFoundError("weights.pt")
            return nn.Linear(2, 2), torch.ones(1, 2)
    """
    world = examine(tmp_path, source, 3)
    error = only_error(world)
    assert error.ranks == RankSet([1])
    assert only_row(world).steps == 0
    assert world.seconds < 20


def test_an_error_in_a_step_of_ddp_ends_the_stage(tmp_path: Path) -> None:
    source = """
        calls = 0

        class Tires(nn.Linear):
            def forward(self, x):
                global calls
                calls += 1
                if calls > 4:
                    raise RuntimeError("tired")
                return super().forward(x)

        def factory():
            return Tires(2, 2), torch.ones(1, 2)
    """
    world = examine(tmp_path, source)
    assert set(world.errors) == {0, 1}
    assert all("in DDP failed: tired" in text for text in world.errors.values())
    (row,) = world.evidence.model
    assert row.errors[0].source == 'raise RuntimeError("tired")'


def test_ranks_with_other_parameters_are_told_before_ddp_waits_for_them(tmp_path: Path) -> None:
    source = """
        def factory():
            return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 + dist.get_rank() // 2)), torch.ones(1, 2)
    """
    world = examine(tmp_path, source, 3)
    error = only_error(world)
    assert (error.kind, error.ranks) == ("differs", RankSet([2]))
    assert error.message == "1.weight 4x2 float32 here, 1.weight 3x2 float32 on rank 0"
    assert world.seconds < 20


@pytest.mark.long
def test_a_wrapped_or_lazy_module_is_refused(tmp_path: Path) -> None:
    wrapped = (
        "def factory():\n    return nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), torch.ones(1, 2)\n"
    )
    assert only_error(examine(tmp_path / "wrapped", wrapped)).kind == "wrapped"
    lazy = "def factory():\n    return nn.LazyLinear(2), torch.ones(1, 2)\n"
    error = only_error(examine(tmp_path / "lazy", lazy))
    assert (error.kind, error.message) == ("lazy", "weight and 1 more of a lazy module")


def test_a_factory_that_destroys_the_process_group_is_named(tmp_path: Path) -> None:
    source = """
        def factory():
            dist.destroy_process_group()
            return nn.Linear(2, 2), torch.ones(1, 2)
    """
    world = examine(tmp_path, source)
    (row,) = world.evidence.model
    assert [each.kind for each in row.errors] == ["group-destroyed"]
    assert all("ProbeError" in text for text in world.errors.values())  # what comes later needs the group


def test_a_file_of_a_package_is_imported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "outer_package" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (inner.parent / "layers.py").write_text("NAME = 'found'\n")
    (inner / "net.py").write_text("from ..layers import NAME\ndef make():\n    return NAME\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_factory(f"{inner / 'net.py'}:make")() == "found"


def test_nothing_is_written_and_random_state_is_kept(tmp_path: Path) -> None:
    examine(tmp_path, HEALTHY)
    assert [each.name for each in (tmp_path / "project").iterdir()] == ["user_model.py"]
    assert list((tmp_path / "work").iterdir()) == []


def test_without_model_there_is_no_row(tmp_path: Path) -> None:
    assert run_world(probe_model, 1, tmp_path).evidence.model == ()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(
        "class Zoo:\n    @staticmethod\n    def cat():\n        return 1\n"
    )
    (tmp_path / "shop" / "needy.py").write_text("import shop.nothing_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "shop"
    for name in [each for each in sys.modules if each.split(".")[0] == "shop"]:
        del sys.modules[name]


def test_a_factory_is_found_in_a_package_below_the_working_directory(package: str) -> None:
    assert load_factory("shop.models:Zoo.cat")() == 1


@pytest.mark.parametrize(
    ("reference", "kind", "text"),
    [
        ("shop.model:Zoo", "missing", "there is no module 'shop.model'"),
        ("shopp.models:Zoo", "missing", "there is no module 'shopp'"),
        ("shop.models:Zoe", "missing", "did you mean 'Zoo'?"),
        ("shop.needy:f", "raised", "No module named 'shop.nothing_there'"),
        ("shop.models", "missing", "not of the form pkg.mod:factory"),
        (":f", "missing", "not of the form"),
        ("shop/no.py:f", "missing", "there is no file shop/no.py"),
    ],
)
def test_what_is_not_there_is_told_apart_from_what_is_broken(
    package: str, reference: str, kind: str, text: str
) -> None:
    with pytest.raises(FactoryError) as caught:
        load_factory(reference)
    assert caught.value.kind == kind
    assert text in caught.value.message


@dataclass
class Output:
    logits: torch.Tensor
    count: int = 3


def test_the_loss_follows_the_documented_rule() -> None:
    two = torch.full((2, 2), 2.0)
    assert find_loss(torch.tensor([5.0])) == 5.0
    assert find_loss({"loss": torch.tensor(7.0), "logits": two}) == 7.0
    assert find_loss(two) == 8.0
    assert find_loss([two, (two, torch.arange(3))]) == 16.0
    assert find_loss(Output(two)) == 8.0
    assert find_loss({"loss": None, "logits": two}) == 8.0
    with pytest.raises(FactoryError, match="no floating-point tensor"):
        find_loss(torch.arange(3))


def test_nested_inputs_keep_their_types_when_they_move() -> None:
    Pair = namedtuple("Pair", "a b")
    moved = move({"x": [torch.ones(1), Pair(torch.ones(2), "text")], "n": 3}, "cpu")
    assert isinstance(moved["x"][1], Pair)
    assert moved["x"][1].b == "text"
    assert moved["n"] == 3


def test_frames_of_libraries_are_not_the_users() -> None:
    assert is_own(__file__)
    assert not is_own(torch.__file__)
    assert not is_own(textwrap.__file__)
    assert not is_own(pytest.__file__)
    assert not is_own("/home/someone/.local/lib/python3.11/site-packages/timm/models.py")
    assert not is_own("<string>")
