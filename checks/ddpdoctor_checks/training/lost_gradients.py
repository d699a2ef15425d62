"""COL010: what all_gather gives has no gradient, and a loss is computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.syncs import Gathered
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set

UNSAID = "gathered tensors: "
"""How a rank begins to say why it did not look."""
_OWN = (
    "gathered[rank] = z   # this rank's part, with its gradient; the other ranks compute the gradients of "
    "theirs"
)


@check("COL010", family="training", needs=TRAINING, id="training.gathers", required=False, commands=JOB)
def find_gathered(evidence: Evidence) -> Iterable[Finding]:
    """A loss is computed from what all_gather gave, through which no gradient flows."""
    ranks = RankSet().union(*(node.ranks for node in evidence.training))
    if len(ranks) < 2 or not any(node.numerics.counts or node.steps for node in evidence.training):
        raise NotApplicable("no backward pass was seen on several ranks")
    joined: dict[tuple[str, str], list[Gathered]] = {}
    for node in evidence.training:
        for each in node.syncs.gathered:
            joined.setdefault((each.operation, str(user_line(each.frames))), []).append(each)
    unsaid = [reason for node in evidence.training for reason in node.abstained if reason.startswith(UNSAID)]
    if not joined and unsaid:
        raise CannotLook(unsaid[0])
    for rows in joined.values():
        yield _tell(rows)


def _tell(rows: Sequence[Gathered]) -> Finding:
    first = rows[0]
    ranks = RankSet().union(*(row.ranks for row in rows))
    line = user_line(first.frames)
    size = " x ".join(map(str, first.shape))
    return Finding(
        message=f"{capitalise(name_set(ranks))} {choose_form(len(ranks), 'computes', 'compute')} a loss from what "
        f"{first.operation}{tell_line(line)} gathered: no gradient flows through it.",
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem("gathered", f"the input ({size}) requires a gradient", ranks),
            EvidenceItem(
                "graph", "the gathered tensor is saved for the backward pass and requires none", ranks
            ),
        ),
        fix=(
            Fix("put this rank's own part back before the loss is computed", code=_OWN),
            Fix(
                "or gather with a function that autograd supports",
                code="gathered = torch.cat(torch.distributed.nn.functional.all_gather(z))",
            ),
            Fix("if it is meant to be constant, detach it", code="dist.all_gather(gathered, z.detach())"),
        ),
        details={"operation": first.operation, "shape": list(first.shape)},
    )
