"""ENV003 of a job: ranks that went by worlds of different size."""

from __future__ import annotations

from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.wording import describe_groups, fold_values, tabulate
from ddpdoctor_checks.job.blame.claims import find_sizes
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.ends.clauses import Clause, Describe


def _describe_sizes(diagnosis: Diagnosis, group: Group) -> Clause:
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
