"""COL010: what all_gather gives has no gradient, and a loss is computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.syncs import Gathered
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.crash.frames import tell_line, user_line
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.places import in_line
from ddpdoctor_checks.training.findings import NEEDS
from ddpdoctor_checks.wording import capitalise, choose_form, name_set

UNSAID = "gathered tensors: "
"""How a rank begins to say why it did not look."""
_OWN = "gathered[rank] = z   # this rank's part, with its gradient; the others' gradients are made by their own ranks"


@check(
    "COL010",
    name="gather-without-gradient",
    title="Gathered tensors without a gradient are part of a loss",
    severity="warning",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.gathers",
    required=False,
    commands=JOB,
)
def find_gathered(evidence: Evidence) -> Iterable[Finding]:
    """A loss is computed from what all_gather gave, through which no gradient flows, not even to this rank's own part.

    What it looks for:
        Calls of ``all_gather`` and ``all_gather_into_tensor`` on tensors that require a gradient, and in the graph of
        the next backward a saved tensor that requires none and has the bits of what was gathered.

    Why it matters:
        all_gather is no function of autograd: what it gives are constants. A contrastive loss then pulls each sample
        toward the others and never the others toward it. Training goes on, and is worse.

    How it decides:
        By the bits themselves: all parts together, all but this rank's own, or one part of another rank. What was
        gathered for a metric is not in the graph; with this rank's own part put back (the usual way) what is saved
        requires a gradient; what was detached, or made without gradients, was meant to be constant. The first eight
        such calls of a program are looked at. Not seen is what was computed with before it met what has a gradient
        (normalised, cast), and what checkpointing holds. Torch up to 2.9 does not tell what a hook of saved tensors has
        packed: where the program uses such hooks nothing is said there. ``lint`` follows a loss backwards to what was
        gathered, and that to a wrapped model, where the own part is not put back.

    Known false alarms:
        Losses that take other ranks' samples as constants on purpose, without saying so by ``detach()``.

    Fix:
        Put this rank's own part back, or gather by a function that autograd knows.

    References:
        https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather
        https://github.com/pytorch/pytorch/issues/58005
        https://github.com/mlfoundations/open_clip/blob/main/src/open_clip/loss.py
    """
    ranks = RankSet().union(*(node.ranks for node in evidence.training))
    if len(ranks) < 2 or not any(node.numerics.counts or node.steps for node in evidence.training):
        raise NotApplicable("no backward was seen on several ranks")
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
            EvidenceItem("gathered", f"what is given ({size}) requires a gradient", ranks),
            EvidenceItem("graph", "what was gathered is saved for the backward, and requires none", ranks),
        ),
        fix=(
            Fix("put this rank's own part back before the loss is computed", code=_OWN),
            Fix(
                "or gather by a function that autograd knows",
                code="gathered = torch.cat(torch.distributed.nn.functional.all_gather(z))",
            ),
            Fix("where it is meant to be constant, say so", code="dist.all_gather(gathered, z.detach())"),
        ),
        details={"operation": first.operation, "shape": list(first.shape)},
    )
