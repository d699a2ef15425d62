"""ENV003 of a job: ranks that went by worlds of different size."""

from __future__ import annotations

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.wording import describe_groups, fold_values, tabulate
from ddpdoctor_checks.job.blame.claims import find_sizes
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.ends.clauses import Clause, Describe


def _describe_sizes(diagnosis: Diagnosis, group: Group) -> Clause:
    said = group.first.groups
    if "joined" in said:
        return Clause(
            f"{said['joined']} processes joined a group of {said['expected']}: the script and the launcher count the "
            "processes differently, or a second launch joined the same rendezvous.",
            (
                Fix("let the launcher count them", code='world_size = int(os.environ["WORLD_SIZE"])'),
                Fix(
                    "start one process for each rank: not mp.spawn inside srun or torchrun, which start them too"
                ),
                Fix("give every job a port of its own, and end what an earlier one left running"),
            ),
            {"joined": said["joined"], "expected": said["expected"]},
            whole=True,
            ranks=RankSet(),
        )
    groups = fold_values({rank: str(size) for rank, (size, _) in find_sizes(diagnosis).items()})
    return Clause(
        f"The ranks used different world sizes: WORLD_SIZE is {describe_groups(groups)}.",
        (
            Fix("let the launcher count them", code='world_size = int(os.environ["WORLD_SIZE"])'),
            Fix("start all nodes with the same --nnodes and --nproc-per-node"),
        ),
        {"values": tabulate(groups)},
        whole=True,
    )


CLAUSES: dict[str, Describe] = {
    "ENV003": _describe_sizes,
}
