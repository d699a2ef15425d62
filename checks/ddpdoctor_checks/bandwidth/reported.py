"""PRF002 by what nccl-tests printed: runs on several sets of nodes, compared with each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import TextMatch
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.wording import choose_form, join_words

SLOW = 0.7
"""Share of the others' bandwidth below which a run is slow: averages of nccl-tests over the same sizes repeat within
some percent on nodes of one kind, while a node that lost a rail of two, or a PCIe link, is at half."""
FEWEST = 3
"""Runs that can be compared: of two that differ nothing tells which is slow."""


LOOK = "ibstat; nvidia-smi topo -m; nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv"
"""Shows rails, and PCIe links that came up narrow."""


@dataclass(frozen=True, slots=True)
class Run:
    """One output of nccl-tests."""

    file: str
    bandwidth: float
    """Average bus bandwidth, GB/s."""
    nodes: frozenset[str]


def list_runs(texts: Sequence[TextMatch]) -> list[Run]:
    """Return the runs that texts tell of, one for each file that has one average."""
    speeds: dict[str, list[float]] = {}
    nodes: dict[str, set[str]] = {}
    for text in texts:
        if text.entry == "nccl-tests-bandwidth":
            speeds.setdefault(text.file or "", []).append(float(text.groups["bandwidth"]))
        elif text.entry == "nccl-tests-rank":
            nodes.setdefault(text.file or "", set()).add(text.groups["node"])
    return [
        Run(file, each[0], frozenset(nodes[file]))
        for file, each in speeds.items()
        if len(each) == 1 and nodes.get(file)
    ]


def find_slow_nodes(runs: Sequence[Run]) -> Mapping[str, tuple[list[Run], float]]:
    """Return node -> its runs and what is typical without it, for nodes whose every run is slow.

    A node counts only where its slow runs share no other node: else nothing tells which of them is slow.
    """
    found = {}
    for node in sorted(set().union(*(run.nodes for run in runs))):
        own = [run for run in runs if node in run.nodes]
        others = [run.bandwidth for run in runs if node not in run.nodes]
        if not others or (len(own) < 2 and len(own[0].nodes) > 1):
            continue
        typical = statistics.median(others)
        shared = frozenset.intersection(*(run.nodes for run in own))
        if shared == {node} and all(run.bandwidth < SLOW * typical for run in own):
            found[node] = (own, typical)
    return found


def _show(run: Run) -> EvidenceItem:
    text = f"{run.bandwidth:.3g} GB/s on {join_words(sorted(run.nodes))}"
    return EvidenceItem("measurement", text, None, (run.file, 1))


@check("PRF002", id="bw.reported.nodes", family="bandwidth", needs=("texts",), commands=("analyze",))
def find_node_slow(evidence: Evidence) -> Iterable[Finding]:
    """Runs of nccl-tests with one node are slower than all others."""
    runs = list_runs(evidence.texts)
    if len(runs) < FEWEST:
        raise NotApplicable("fewer than three outputs of nccl-tests to compare")
    slow = find_slow_nodes(runs)
    for node, (own, typical) in slow.items():
        speeds = join_words(f"{run.bandwidth:.3g}" for run in own)
        yield Finding(
            message=f"{node} is slow: {speeds} GB/s bus bandwidth in {len(own)} "
            f"{choose_form(len(own), 'run', 'runs')} with it, {typical:.3g} GB/s (median) without.",
            nodes=(node,),
            evidence=tuple(_show(run) for run in own),
            fix=(Fix("compare adapters, PCIe links and rails of that node with a fast one", LOOK),),
            details={"typical": typical, "bandwidth": [run.bandwidth for run in own]},
            confidence="medium",
        )
