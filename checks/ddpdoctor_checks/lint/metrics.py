"""NUM005 and DAT007 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check, check_also
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.training import sampling


@check(
    "NUM005",
    name="metric-unreduced",
    title="A result of one rank's data stands for all",
    severity="warning",
    family="source",
    needs=("sources",),
    since="0.1.0",
    id="lint.metrics",
    commands=LINT,
)
def find_unreduced(evidence: Evidence) -> Iterable[Finding]:
    """A rank counts over the part of the data that it is given, and nothing joins the counts.

    What it looks for:
        Loops over a loader with a DistributedSampler that add something up, in a program in which nothing reduces or
        gathers; and what is then compared, of an evaluation also what is printed or logged. Numbers of batches and
        samples do not count.

    Why it matters:
        Each rank knows the accuracy of its own part only. The best checkpoint or the early stop is chosen by a
        fraction of the data, and where each rank decides for itself they may part, and hang.

    How it decides:
        The loader is followed to its sampler, and the sums to where they are used, also through the ``return`` of the
        function, and into functions and objects of the files (an early stop that counts) and ReduceLROnPlateau. What is
        compared with another number than 0 decides. Any name in the program that speaks of reducing, gathering or
        metrics makes it silent. What is only told is a hint; what decides is a warning.

    Known false alarms:
        Numbers that are meant for one rank and say so.

    Fix:
        Reduce the sums and the counts, and divide afterwards.

    References:
        https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce ;
        https://github.com/Lightning-AI/pytorch-lightning/issues/4702
    """
    for fact in facts_of(evidence, "metric-unreduced"):
        way, name = fact.names
        verb = "decides" if way == "decides" else "is told"
        yield tell_fact(
            fact,
            f"{name} {verb} at {name_line(fact.place)} and is that of one rank's part of the data: the loop at "
            f"{name_line(fact.related[0].place)} goes over what a DistributedSampler gives, and nothing is reduced.",
            Fix(
                "reduce the sums and counts first",
                code="sums = torch.tensor([correct, count], dtype=torch.float64, device=device)\n"
                "dist.all_reduce(sums)\naccuracy = (sums[0] / sums[1]).item()",
            ),
            why="no name in the program speaks of reducing, gathering or metrics",
            severity=None if way == "decides" else "info",
            role="cause" if way == "decides" else "advice",
        )


@check_also(
    sampling.find_evaluation_padded, id="lint.evaluation", family="source", needs=("sources",), commands=LINT
)
def find_evaluation_padded(evidence: Evidence) -> Iterable[Finding]:
    """A DistributedSampler shares out the data of an evaluation whose counts are joined."""
    for fact in facts_of(evidence, "evaluation-padded"):
        yield tell_fact(
            fact,
            f"The sampler at {name_line(fact.place)} fills up with samples that it has given already where their "
            f"number is no multiple of the ranks; the loop at {name_line(fact.related[0].place)} counts these twice.",
            Fix(
                "let each rank evaluate its own part, without further samples",
                code="part = Subset(dataset, range(rank, len(dataset), world_size))",
            ),
            why="the counts are joined over ranks, and nothing cuts them to the length of the data set",
            severity="info",
            role="advice",
        )
