"""Optimizers that begin anew on a model from a file of torch.load: resumed runs beside tuned ones, which look alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.watch.injecting import python

SCRIPT = """
    import json, sys, textwrap, torch
    from ddpdoctor_watch.core import frames, journal
    from ddpdoctor_watch.models import resumes, saved_states

    frames.begin()
    events = []
    journal.write = lambda event, fields: events.append([event, fields]) or 0

    def build(kind=torch.optim.Adam, out=3, **options):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, out))
        return model, kind(model.parameters(), lr=0.1, **options)

    def step(model, optimizer):
        if resumes.is_waiting():
            resumes.note_first_step(optimizer, sys._getframe())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def save(kind=torch.optim.Adam, **options):
        model, optimizer = build(kind, **options)
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        for _ in range(7):
            step(model, optimizer)
            plan.step()
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 7, "sched": plan.state_dict()}, "x.pt")

    def told():
        found = [[event, fields.get("counter"), fields.get("names")] for event, fields in events if "resume" in event]
        events.clear()
        resumes.after_fork()
        saved_states.after_fork()
        return found
"""
CASES = {
    "resumed": (
        """
        model.load_state_dict(blob["model"])
        for epoch in range(blob["epoch"], 9):
            step(model, optimizer)
            break
        """,
        [["resume", "epoch", ["optim"]]],
    ),
    "resumed by a trainer": (
        """
        class Trainer:
            def go(self):
                self.global_epoch = blob["epoch"] + 1
                step(model, optimizer)
        model.load_state_dict({f"module.{name}": each for name, each in blob["model"].items()}, strict=False)
        model.load_state_dict(blob["model"])
        Trainer().go()
        """,
        [["resume", "", ["optim"]]],  # "global" may be another count: no more than info
    ),
    "resumed schedule": (
        """
        model.load_state_dict(blob["model"])
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        plan.load_state_dict(blob["sched"])
        step(model, optimizer)
        """,
        [["resume", "sched", ["optim"]]],
    ),
    "tuned": (
        """
        model.load_state_dict(blob["model"])
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        pretrained_epoch = blob["epoch"]
        for epoch in range(3):
            step(model, optimizer)
            break
        """,
        [["resume", "", ["optim"]]],
    ),
    "tuned in the process that wrote it": (
        """
        epoch = blob["epoch"]   # of the first stage
        def train():
            for epoch in range(3):
                step(model, optimizer)
                break
        model.load_state_dict(blob["model"])
        train()
        """,
        [["resume", "", ["optim"]]],
    ),
    "schedule that starts over": (
        """
        model.load_state_dict(blob["model"])
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [["resume", "", ["optim"]]],
    ),
    "right": (
        """
        model.load_state_dict(blob["model"])
        optimizer.load_state_dict(blob["optim"])
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [],
    ),
    "loaded after a step that makes the state": (
        """
        model.load_state_dict(blob["model"])
        epoch = blob["epoch"]
        step(model, optimizer)
        optimizer.load_state_dict(blob["optim"])
        """,
        [["resume", "epoch", ["optim"]], ["resumed", None, None]],
    ),
    "teacher": (
        """
        teacher, _ = build()
        teacher.load_state_dict(blob["model"])
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [],
    ),
    "new head": (
        """
        model, optimizer = build(out=2)
        model.load_state_dict({name: each for name, each in blob["model"].items() if "0." in name}, strict=False)
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [],
    ),
    "part of the model": (
        """
        optimizer = torch.optim.Adam(model[1].parameters())
        model.load_state_dict(blob["model"])
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [],
    ),
    "another optimizer": (
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.load_state_dict(blob["model"])
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [],
    ),
    "other weights on top": (
        """
        model.load_state_dict(blob["model"])
        model.load_state_dict({name: each[:0] if each.dim() > 9 else each for name, each in build()[0].state_dict().items()})
        torch.save({"model": model.state_dict()}, "y.pt")
        epoch = 0
        step(model, optimizer)
        """,
        [["resume", "", ["optim"]]],
    ),
}


for momentum in (0, 0.9):  # without momentum there is no state to lose
    options = f"kind=torch.optim.SGD, momentum={momentum}"
    CASES[f"momentum {momentum}"] = (
        f"""
        save({options})
        told()
        blob = torch.load("x.pt")
        model, optimizer = build({options})
        model.load_state_dict(blob["model"])
        epoch = blob["epoch"]
        step(model, optimizer)
        """,
        [["resume", "epoch", ["optim"]]] if momentum else [],
    )

EACH = """
    out = {}
    for name, body in json.loads(sys.argv[1]).items():
        save()
        told()
        own = dict(globals(), blob=torch.load("x.pt"))
        own["model"], own["optimizer"] = build()
        exec(compile(textwrap.dedent(body), __file__, "exec"), own)
        out[name] = told()
    print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    bodies = json.dumps({name: body for name, (body, _) in CASES.items()})
    done = python(tmp_path_factory.mktemp("saved"), SCRIPT + EACH, bodies)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_optimizer_on_a_model_from_a_file(told: Any, name: str) -> None:
    assert told[name] == CASES[name][1]
