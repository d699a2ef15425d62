"""The environment as a matrix of ranks: for each variable, which value stands on which ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import Evidence, NodeFacts, RankFacts, RankSet
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import clip, count, fold_hosts, format_ranks

PER_RANK = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "PMI_RANK", "PMIX_RANK"),
        *(
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURMD_NODENAME",
            "SLURM_TASK_PID",
            "SLURM_GTIDS",
        ),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
        *("HOSTNAME", "POD_NAME", "POD_IP", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "NODE_RANK"),
        *("TORCHELASTIC_ERROR_FILE", "rank", "local rank", "device", "device UUID", "host"),
    }
)
"""Names that differ over ranks or nodes by what they mean, as torch.distributed.run, Slurm, PMI, Open MPI and
Kubernetes document them."""

VALUES_SHOWN = 8
"""Values of one variable that are written out: half the most frequent, half the rarest (the odd ones)."""
ROWS_SHOWN = 200
"""Variables in one table: more than the whole allow-list."""
VALUE_LENGTH = 300
"""Characters of one value."""
RUNS_SHOWN = 256
"""Changes along the ranks that a strip of some 300 pixels can still show."""
COLUMNS_SHOWN = 16
"""Ranks for which the strip shows separate cells with their borders."""


@dataclass(frozen=True, slots=True)
class ValueView:
    """One value and where it stands."""

    text: str | None
    """None: the variable is not set there."""
    who: str
    number: int
    shade: int
    """Class of its cells in the strip; 0 is the most frequent value."""


@dataclass(frozen=True, slots=True)
class VariableView:
    """One variable that differs."""

    name: str
    kind: str
    values: tuple[ValueView, ...]
    hidden: int
    """Values that are not written out."""
    strip: Markup | None


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """All variables, versions and other facts of ranks and nodes."""

    differ: tuple[VariableView, ...]
    by_design: tuple[VariableView, ...]
    equal: tuple[tuple[str, str, str], ...]
    """Name, kind and the one value."""
    subjects: str
    """What was compared: ``8 ranks and 2 nodes``."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is compared: the ranks or the nodes, each with a number."""

    noun: str
    numbers: tuple[int, ...]
    words: Callable[[RankSet], str]


def view_environment(evidence: Evidence, caps: Caps) -> EnvironmentView:
    """Return the matrix of a report's evidence."""
    ranks, nodes = evidence.ranks, evidence.nodes
    rank_subject = _Subject(
        "rank", tuple(each.rank for each in ranks), lambda found: format_ranks(found, len(ranks))
    )
    hosts = {node.node: node.host for node in nodes}
    node_subject = _Subject(
        "node", tuple(node.node for node in nodes), lambda found: fold_hosts([hosts[n] for n in found])
    )
    differ: list[VariableView] = []
    design: list[VariableView] = []
    equal: list[tuple[str, str, str]] = []
    for subject, table in (
        (rank_subject, _rank_table(ranks)),
        (node_subject, _node_table(nodes, bool(ranks))),
    ):
        for (kind, name), values in table.items():
            groups = _group(values, subject.numbers)
            if len(groups) == 1:
                (value,) = groups
                if value is not None:
                    equal.append((name, kind, clip(value, VALUE_LENGTH)))
                continue
            row = _row(name, kind, groups, subject)
            (design if name in PER_RANK else differ).append(row)
    both = [count(len(each), noun) for each, noun in ((ranks, "rank"), (nodes, "node")) if each]
    equal = list(dict.fromkeys(equal))
    return EnvironmentView(
        caps.take(differ, ROWS_SHOWN, "variables that differ"),
        caps.take(design, ROWS_SHOWN, "variables that differ by design"),
        caps.take(equal, ROWS_SHOWN, "variables that are equal"),
        " and ".join(both),
    )


Table = dict[tuple[str, str], dict[int, str]]


def _rank_table(ranks: Iterable[RankFacts]) -> Table:
    """(kind, name) -> rank -> value."""
    table: Table = {}
    for each in ranks:
        number = each.rank
        for name, value in each.variables.items():
            table.setdefault(("variable", name), {})[number] = value
        for name, value in each.versions.items():
            table.setdefault(("version", name), {})[number] = value
        for name, fact in (
            ("world size as seen", str(each.world_size)),
            ("device", each.device),
            ("device UUID", each.device_uuid),
            ("visible devices", str(each.visible_devices)),
            ("torch threads", None if each.threads is None else str(each.threads)),
        ):
            if fact is not None:
                table.setdefault(("rank", name), {})[number] = fact
    return table


def _node_table(nodes: Iterable[NodeFacts], have_ranks: bool) -> Table:
    """(kind, name) -> node -> value; variables of the launching process only where no rank reported any."""
    table: Table = {}
    for each in nodes:
        for name, value in each.versions.items():
            table.setdefault(("version", name), {})[each.node] = value
        for name, value in {} if have_ranks else each.variables.items():
            table.setdefault(("variable", name), {})[each.node] = value
        facts = {
            "system": each.system,
            "cores": None if each.cpus is None else str(each.cpus.affinity),
            "devices": str(len(each.devices)) if each.devices else None,
        }
        for name, fact in facts.items():
            if fact is not None:
                table.setdefault(("node", name), {})[each.node] = fact
    return table


def _group(values: dict[int, str], numbers: tuple[int, ...]) -> dict[str | None, RankSet]:
    """Value -> where it stands; None where it is not set. The most frequent value first."""
    members: dict[str | None, list[int]] = {}
    for number in numbers:
        members.setdefault(values.get(number), []).append(number)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return {value: RankSet(found) for value, found in ordered}


def _row(name: str, kind: str, groups: dict[str | None, RankSet], subject: _Subject) -> VariableView:
    listed = list(groups.items())
    chosen = list(range(len(listed)))
    if len(listed) > VALUES_SHOWN:
        half = VALUES_SHOWN // 2
        chosen = chosen[:half] + chosen[-half:]
    shown = tuple(
        ValueView(
            None if listed[i][0] is None else clip(listed[i][0] or "", VALUE_LENGTH),
            subject.words(listed[i][1]),
            len(listed[i][1]),
            shade_of(i),
        )
        for i in chosen
    )
    strip = _strip([found for _, found in listed], len(subject.numbers)) if subject.noun == "rank" else None
    return VariableView(name, kind, shown, len(listed) - len(shown), strip)


def shade_of(index: int) -> int:
    """Return the colour class of the value at ``index``: 0 for the most frequent, then 1 to 5 in turn."""
    return 0 if index == 0 else 1 + (index - 1) % 5


def _strip(groups: list[RankSet], size: int) -> Markup | None:
    """Draw where the values stand along the ranks; None where that changes too often to be seen."""
    if sum(len(found.ranges) for found in groups) > RUNS_SHOWN or not size:
        return None
    last = max(found.ranges[-1][1] for found in groups if found.ranges) + 1
    gap = 0.12 if last <= COLUMNS_SHOWN else 0.0
    drawing = Drawing(100, 10, "strip", stretch=True)
    unit = 100 / last
    for index, found in enumerate(groups):
        for low, high in found.ranges:
            cells: Iterable[tuple[int, int]] = [(low, high)]
            if last <= COLUMNS_SHOWN:
                cells = ((rank, rank) for rank in range(low, high + 1))
            for start, end in cells:
                # at least a third of a percent wide, or one rank of thousands would vanish
                width = max((end - start + 1 - gap) * unit, 0.35)
                drawing.rect((start + gap / 2) * unit, 0, width, 10, f"s{shade_of(index)}")
    return drawing.markup()
