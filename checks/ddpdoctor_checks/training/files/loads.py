"""CKP004 where nothing complains: load_state_dict(strict=False) that matched no name, for a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.loads import EmptyLoad
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set


@check(
    "CKP004", family="training", needs=TRAINING, id="training.checkpoint_prefix", required=False, commands=JOB
)
def find_empty_loads(evidence: Evidence) -> Iterable[Finding]:
    """A checkpoint was loaded with strict=False, and none of its names fits, for a prefix."""
    if not evidence.training:
        raise NotApplicable("no training was seen")
    joined: dict[tuple[str, str, str], list[EmptyLoad]] = {}
    for node in evidence.training:
        for each in node.loads:
            joined.setdefault((each.model, each.name, str(user_line(each.frames))), []).append(each)
    for rows in joined.values():
        yield _tell(rows)


def _tell(rows: Sequence[EmptyLoad]) -> Finding:
    first = rows[0]
    ranks = RankSet().union(*(row.ranks for row in rows))
    line = user_line(first.frames)
    model = first.model.rpartition(".")[2]
    has = f"begin with {first.prefix}" if first.extra else f"lack {first.prefix}"
    other = "but those of the model do not" if first.extra else "with which those of the model begin"
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} {choose_form(len(ranks), 'loads', 'load')} nothing into "
            f"{model}{tell_line(line)}: the names in the checkpoint {has}, {other}, and strict=False "
            "ignores the mismatch."
        ),
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem("names", f"none of {first.count} names matches, the first is {first.name}", ranks),
        ),
        fix=_fix(first),
        details={"prefix": first.prefix, "key": first.name, "names": first.count},
    )


def _fix(load: EmptyLoad) -> tuple[Fix, ...]:
    let_say = Fix(
        "print what load_state_dict could not match",
        code="print(model.load_state_dict(state, strict=False))   # or strict=True",
    )
    if load.extra:
        return (
            Fix(
                "strip the prefix while loading",
                code=f'state = {{k.removeprefix("{load.prefix}"): v for k, v in state.items()}}\n'
                "model.load_state_dict(state)",
            ),
            Fix("and save the model, not the wrapper", code="torch.save(model.module.state_dict(), path)"),
            let_say,
        )
    return (
        Fix("load into the model inside the wrapper", code="model.module.load_state_dict(state)"),
        Fix(
            "or load before the model is wrapped",
            code="model.load_state_dict(state)\nmodel = DistributedDataParallel(model)",
        ),
        let_say,
    )
