"""Optimizers that begin anew on a model of a distributed checkpoint are seen; fine-tuning looks alike and is info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.loads import FreshOptimizer
from ddpdoctor.judge import NotApplicable
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.resumes import fold_resumes
from ddpdoctor_checks.training import find_fresh_optimizers
from tests.watch.injecting import python

SCRIPT = """
    import json, sys, warnings, torch
    warnings.simplefilter("ignore")
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from ddpdoctor_watch.core import journal
    from ddpdoctor_watch.models import resumes

    events = []
    journal.write = lambda event, fields: events.append([event, fields]) or 0

    def build(kind=torch.optim.Adam, **options):
        model = torch.nn.Linear(3, 3)
        return model, kind(model.parameters(), lr=0.1, **options)

    def step(model, optimizer):
        resumes.note_first_step(optimizer, sys._getframe())   # as before the first step of an optimizer
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def told():
        found, events[:] = [each for each in events if each[0] != "restored"], []
        resumes.after_fork()
        return found

    def save(path, **more):
        model, optimizer = build()
        step(model, optimizer)
        first, second = get_state_dict(model, optimizer)
        dcp.save({"model": first, "optimizer": second, **more}, checkpoint_id=path, no_dist=True)

    def load(state, path):
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return state

    save("whole", step=5)
    out = {}
    model, optimizer = build()
    load({"model": model.state_dict(), "step": 0}, "whole")
    step(model, optimizer)
    out["resumed"] = told()

    model, optimizer = build()
    load({"model": model.state_dict()}, "whole")
    step(model, optimizer)
    out["tuned"] = told()

    model, optimizer = build()
    first, second = get_state_dict(model, optimizer)
    state = load({"model": first, "optimizer": second, "step": 0}, "whole")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(model, optimizer)
    out["right"] = told()

    model, optimizer = build()
    load({"model": model.state_dict(), "step": 0}, "whole")
    step(model, optimizer)   # as get_state_dict does, to have something to load into
    load({"optimizer": get_state_dict(model, optimizer)[1]}, "whole")
    out["afterwards"] = [[event, fields["number"]] for event, fields in told()]

    model, optimizer = build()   # whose own state dict has settings only, as of any that has not stepped
    state = load({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}, "whole")
    optimizer.load_state_dict(state["optimizer"])
    step(model, optimizer)
    out["settings"] = [[event, fields["counter"]] for event, fields in told()]

    teacher, _ = build()
    load({"model": teacher.state_dict(), "step": 0}, "whole")
    step(*build())
    out["teacher"] = told()

    model, optimizer = build(torch.optim.SGD)
    load({"model": model.state_dict(), "step": 0}, "whole")
    step(model, optimizer)
    out["stateless"] = told()

    model, _ = build()
    dcp.save({"model": model.state_dict(), "step": 5}, checkpoint_id="bare", no_dist=True)
    model, optimizer = build()
    load({"model": model.state_dict(), "step": 0}, "bare")
    step(model, optimizer)
    out["bare"] = told()
    print(json.dumps(out))
"""


def test_a_fresh_optimizer_on_a_loaded_model_is_seen(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ((event, fields),) = told.pop("resumed")
    assert (event, fields["names"], fields["counter"]) == ("resume", ["optimizer"], "step")
    assert fields["class"] == "torch.optim.adam.Adam"
    ((event, fields),) = told.pop("tuned")
    assert (event, fields["counter"]) == ("resume", "")
    assert told.pop("settings") == [["resume", "step"]]
    assert told.pop("afterwards") == [["resume", 1], ["resumed", 1]]
    assert told == {"right": [], "teacher": [], "stateless": [], "bare": []}


LOAD = (Frame("train.py", 7, "resume", "dcp.load(state, checkpoint_id=path)"),)
STEP = (Frame("train.py", 20, "main", "optimizer.step()"),)
EVENT: dict[str, Any] = {
    "event": "resume", "number": 1, "class": "torch.optim.adamw.AdamW", "names": ["optimizer"], "counter": "step",
    "frames": [], "step_frames": [],
}  # fmt: skip


def test_what_was_loaded_afterwards_is_left_out(tmp_path: Path) -> None:
    good = {"event": "resumed", "number": 1}
    ranks: Any = {0: [EVENT], 1: [EVENT, {**EVENT, "number": 2}, {**good, "number": 2}], 2: [EVENT, good]}
    (found,) = fold_resumes(ranks, Shortener(tmp_path))
    assert found == FreshOptimizer(RankSet([0, 1]), "torch.optim.adamw.AdamW", "optimizer", "step")


@pytest.mark.parametrize(("counter", "severity"), [("step", None), ("", "info")])
def test_a_lost_state_is_named_with_its_lines(counter: str, severity: str | None) -> None:
    rows = [
        FreshOptimizer(RankSet([rank]), "torch.optim.adamw.AdamW", "optimizer", counter, LOAD, STEP)
        for rank in (0, 1)
    ]
    nodes = tuple(Training(node, RankSet([node]), resumes=(row,)) for node, row in enumerate(rows))
    (found,) = find_fresh_optimizers(Evidence(training=nodes))
    assert found.severity == severity
    assert found.ranks == RankSet([0, 1])
    assert "also holds the optimizer's state (optimizer), and AdamW starts without it." in found.message
    assert [(place.role, place.line) for place in found.where] == [("culprit", 7), ("condition", 20)]
    assert ("and step from a checkpoint" in found.message) == bool(counter)


def test_nothing_is_said_without_a_training() -> None:
    with pytest.raises(NotApplicable):
        list(find_fresh_optimizers(Evidence()))
    assert list(find_fresh_optimizers(Evidence(training=(Training(0, RankSet([0])),)))) == []
