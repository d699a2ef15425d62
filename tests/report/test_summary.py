from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    STAGES,
    BackendResult,
    Device,
    Experiment,
    Link,
    ModelResult,
    RankMessage,
    RankSet,
    UnusedParameter,
)
from ddpdoctor.judge.verdict import Verdict
from ddpdoctor.report import Report
from ddpdoctor.report.summary import describe_family, describe_next
from ddpdoctor.testing import make_node, make_report, make_world

BOTH = RankSet([0, 1])
FAILED = (RankMessage(BOTH, "RuntimeError: no"),)
UNUSED = UnusedParameter("head.weight", "head", "Linear", False, BOTH, 1)


def report(nodes: Any = 1, **changes: Any) -> Report:
    return make_report(make_world(nodes, 2, **changes))


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("network", {"rendezvous": ()}, ""),
        (
            "network",
            {"nodes": 2, "links": (Link(0, 1, "large", True), Link(1, 0, "large", False))},
            "1 of 2 node pairs reached",
        ),
        (
            "environment",
            {"nodes": [make_node(0, cpus=None, shared_memory=None, devices=(Device(0), Device(1)))]},
            "2 GPUs",
        ),
        ("backends", {"backends": (BackendResult("gloo", True, failures=FAILED),)}, "gloo failed"),
        (
            "backends",
            {"backends": (BackendResult("nccl", True, device_present=False),)},
            "nccl without device",
        ),
        ("backends", {"backends": (BackendResult("ucc", True),)}, "ucc not tried"),
        ("collectives", {"collectives": (), "initialisations": ()}, ""),
        ("ddp", {"experiments": (Experiment("no-sync", RankSet([0]), FAILED),)}, ""),
        (
            "ddp",
            {"experiments": (Experiment("replicas-equal", BOTH, facts={"steps": 20}),)},
            "replicas equal after 20 steps",
        ),
        (
            "ddp",
            {"experiments": (), "model": (ModelResult("a:b", BOTH, 12),)},
            "a:b: 12 weights, all used",
        ),
        (
            "ddp",
            {"experiments": (), "model": (ModelResult("a:b", BOTH, 1, unused=(UNUSED,)),)},
            "a:b: 1 weight, 1 unused",
        ),
        ("bandwidth", {"bandwidth": ()}, ""),
        ("somebody's", {}, ""),
    ],
)
def test_words_say_only_what_was_established(family: str, changes: dict[str, Any], words: str) -> None:
    text = describe_family(report(**changes), family)
    assert text.endswith(words)
    assert bool(text) == bool(words)


def test_wrong_rows_are_no_bandwidth() -> None:
    rows = make_world().bandwidth
    only = report(bandwidth=(replace(rows[0], correct=False), rows[1]), baselines=())
    assert describe_family(only, "bandwidth") == "all_reduce 1.12 GB/s bus at 1 MiB"
    several = report(bandwidth=(*rows, replace(rows[0], op="broadcast")))
    assert describe_family(several, "bandwidth").endswith(" · 1 more")


@pytest.mark.parametrize(
    ("verdict", "launch", "command"),
    [
        (Verdict("problems", "x", "NET001", 1, 1), {}, "ddpdoctor explain NET001"),
        (Verdict("unknown", "x", None, 0, 1), {}, "ddpdoctor check --nproc 2 -v"),
        (Verdict("healthy", "x", None, 1, 1), {"stages": ("facts",)}, "ddpdoctor check --nproc 2"),
        (
            Verdict("healthy", "x", None, 1, 1),
            {},
            "ddpdoctor check --nproc 2 --model your_package.module:factory",
        ),
        (
            Verdict("healthy", "x", None, 1, 1),
            {"model": "a:b", "stages": STAGES},
            "ddpdoctor check --nproc 2 --full",
        ),
        (
            Verdict("unknown", "x", None, 1, 2),
            {"launcher": "torchrun"},
            "torchrun … -m ddpdoctor check -v",
        ),
        (
            Verdict("healthy", "x", None, 1, 1),
            {"nnodes": 3, "model": "a:b"},
            "ddpdoctor check --nproc 2 --nnodes 3 … --full",
        ),
    ],
)
def test_next_command_exists_and_follows_from_the_verdict(
    verdict: Verdict, launch: dict[str, Any], command: str
) -> None:
    made = report()
    evidence = replace(made.evidence, launch=replace(made.evidence.launch, **launch))
    assert describe_next(replace(made, verdict=verdict, evidence=evidence)) == command
