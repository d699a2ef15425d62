"""CKP007 in a job that trains: the model comes from a checkpoint, and its optimizer's state stays there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.loads import FreshOptimizer
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set


@check(
    "CKP007", family="training", needs=TRAINING, id="training.optimizer_resumed", required=False, commands=JOB
)
def find_fresh_optimizers(evidence: Evidence) -> Iterable[Finding]:
    """A model was loaded from a checkpoint whose optimizer state was not, and its optimizer started from nothing."""
    if not evidence.training:
        raise NotApplicable("no training was seen")
    joined: dict[tuple[str, str, str], list[FreshOptimizer]] = {}
    for node in evidence.training:
        for each in node.resumes:
            key = (each.optimizer, each.names, str(user_line(each.frames)))
            joined.setdefault(key, []).append(each)
    for rows in joined.values():
        yield _tell(rows)


def _tell(rows: Sequence[FreshOptimizer]) -> Finding:
    first = rows[0]
    ranks = RankSet().union(*(row.ranks for row in rows))
    line, step = user_line(first.frames), user_line(first.step_frames)
    name = first.optimizer.rpartition(".")[2]
    counter = next((row.counter for row in rows if row.counter), "")
    resumed = f" and {counter}" if counter else ""
    evidence = [
        EvidenceItem("checkpoint", f"it holds {first.names}, which was not loaded into {name}", ranks),
        EvidenceItem("optimizer", f"{name} had no state before its first step{tell_line(step)}", ranks),
    ]
    if counter:
        text = f"{counter} comes from the same checkpoint: the run resumes, it does not start over"
        evidence.append(EvidenceItem("checkpoint", text, ranks))
    return Finding(
        message=(
            f"{capitalise(name_set(ranks))} {choose_form(len(ranks), 'loads', 'load')} the model{resumed} from a "
            f"checkpoint{tell_line(line)} that also holds the optimizer's state ({first.names}), and {name} "
            "starts without it."
        ),
        severity=None if counter else "info",
        ranks=ranks,
        where=(*in_line(line, ranks, "culprit"), *in_line(step, ranks, "condition")),
        evidence=tuple(evidence),
        fix=(
            Fix(
                "load the optimizer's state together with the model's"
                if counter
                else "if this run resumes the earlier one, load the optimizer's state too; fine-tuning may start fresh",
                code=_LOAD,
            ),
            Fix(
                "with torch.load and a state of its own on each rank",
                code='optimizer.load_state_dict(checkpoint["optimizer"])   # the key under which it was saved',
            ),
        ),
        details={"optimizer": first.optimizer, "names": first.names, "counter": counter},
    )


_LOAD = """model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optimizer": optimizer_state}   # the keys under which they were saved
dcp.load(state, checkpoint_id=path)
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])"""
