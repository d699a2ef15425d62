"""A mistake of ours is named as ours: what ranks, agent and smoke test raise is told from what the machine does."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

import ddpdoctor
from ddpdoctor.launch import smoke
from ddpdoctor.launch.defects import describe_defect, find_defect
from tests.launch.doctor import check

OURS = str(Path(ddpdoctor.__file__).parent / "launch" / "probes" / "made_up.py")


def call_from(file: str, code: str, **names: Any) -> BaseException:
    """Return what code raises that stands in a file of that name."""
    try:
        exec(compile(code, file, "exec"), {"torch": torch, "dist": dist, **names})
    except BaseException as problem:
        return problem
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "code",
    [
        "torch.no_such_name",
        "from torch.distributed import no_such_name",
        "import json\njson.dumps(object())",
        "Agent(1, shutdown=3)",
        "{}['missing']",
    ],
)
def test_what_a_line_of_ours_does_wrong_is_ours(code: str) -> None:
    found = find_defect(call_from(OURS, code, Agent=LocalElasticAgent))
    assert found is not None
    assert (found.file, found.function) == (OURS, "<module>")


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_reduce(torch.ones(1))",  # no group: torch says so
        "torch.ones(2) @ torch.ones(3)",  # RuntimeError of C++
        "torch.nn.Linear('a', 'b')",  # a TypeError within torch
        "raise OSError('no route')",
        "raise RuntimeError('NCCL error')",
    ],
)
def test_what_torch_and_the_machine_say_is_not(code: str) -> None:
    assert find_defect(call_from(OURS, code)) is None


def test_what_a_users_model_does_wrong_is_not() -> None:
    problem = call_from("/home/user/model.py", "torch.no_such_name")
    assert find_defect(problem) is None


def test_an_argument_that_torch_hands_on_for_us_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ddpdoctor"
    (package / "launch").mkdir(parents=True)
    file = package / "launch" / "calling.py"
    file.write_text(
        "def call(dist):\n    dist.barrier(newest=True)\n\ndef call_else(dist):\n    dist.wait_all()\n"
    )
    monkeypatch.setattr(ddpdoctor, "__file__", str(package / "__init__.py"))
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(TypeError, match=r"barrier\(\) got an unexpected") as caught:
        names["call"](dist)
    found = find_defect(caught.value)
    assert found is not None
    assert (found.line, found.function) == (2, "call")

    text = "def wait_all(dist):\n    dist.barrier(newest=True)\n"
    made: dict[str, Any] = {}
    exec(compile(text, torch.__file__, "exec"), made)
    with pytest.raises(TypeError) as caught:
        names["call_else"](types.SimpleNamespace(wait_all=lambda: made["wait_all"](dist)))
    assert find_defect(caught.value) is None


def test_the_evidence_names_who_and_where() -> None:
    defect = describe_defect(call_from(OURS, "\n\ntorch.no_such_name"), "rank 1", "ddp", node=0, rank=1)
    assert defect is not None
    assert (defect.who, defect.file, defect.line, defect.rank) == (
        "rank 1",
        "ddpdoctor/launch/probes/made_up.py",
        3,
        1,
    )
    assert defect.text == "AttributeError: module 'torch' has no attribute 'no_such_name'"


def test_the_smoke_test_says_what_of_ours_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpdoctor.launch.probes import smoke as probe

    monkeypatch.setattr(smoke, "follow_parent", lambda: None)
    monkeypatch.delattr(probe, "make_pattern")
    monkeypatch.setattr(
        probe, "smoke_device", lambda node, device: [probe._measure(node, device, "copy", None, break_it)]
    )
    smoke.run_smoke(str(tmp_path), 0, "cpu")
    events = [json.loads(line) for line in (tmp_path / "smoke-cpu.jsonl").read_text().splitlines()]
    kinds = [(event["event"], event.get("kind")) for event in events]
    assert kinds == [("hello", None), ("row", "defects"), ("bye", None)]
    assert events[1]["data"]["who"] == "the smoke test of cpu on node 0"


def break_it() -> None:
    from ddpdoctor.launch.probes.smoke import check_copy

    check_copy(torch.device("cpu"))


BREAKING = """
import importlib.util, os, sys
import ddpdoctor.facts.versions as versions

if os.environ["BREAK"] == "agent":
    versions.pick_taken = lambda function, **settings: {**settings, "newest": True}
"""
BREAKING_RANK = """
import os, sys, threading

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "ddpdoctor.launch.probes.operations":
            import torch.distributed as dist
            del dist.all_gather_into_tensor
        return None

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    ("breaking", "who", "text"),
    [
        (
            BREAKING,
            "the agent of node 0",
            "LocalElasticAgent.__init__() got an unexpected keyword argument 'newest'",
        ),
        (BREAKING_RANK, "rank ", "has no attribute 'all_gather_into_tensor'"),
    ],
    ids=["agent", "rank"],
)
def test_a_mistake_of_ours_is_an_error_of_ours_and_no_finding(
    tmp_path: Path, breaking: str, who: str, text: str
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(breaking)
    result = check(
        tmp_path / "work",
        "--nproc", "2", "--only", "facts,rendezvous,backends,collectives,ddp",
        environ={"PYTHONPATH": str(hooks), "BREAK": "agent"},
    )  # fmt: skip
    assert (result.code, result.left) == (3, [])
    assert result.report is not None
    verdict = result.report["verdict"]
    assert (verdict["status"], verdict["code"]) == ("error", None)
    assert verdict["headline"].startswith(f"ddpdoctor itself failed in {who}")
    assert text in verdict["headline"]
    assert "ddpdoctor/launch/" in verdict["headline"]
    assert result.codes() == []
    assert "BKD002" not in result.out
    by_id = {row["id"]: row for row in result.report["checks"]}
    assert by_id["col.all_reduce.exact"]["status"] == "unknown"
    assert "ddpdoctor itself failed" in by_id["col.all_reduce.exact"]["reason"]
    assert {row["status"] for row in result.report["checks"] if row["family"] == "network"} <= {
        "pass",
        "skipped",
        "unknown",
    }
