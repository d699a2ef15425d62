"""A rank's own gradients are seen before they are reduced, and nothing of that is on the program's objects."""

from __future__ import annotations

import json
from pathlib import Path

from tests.watch.injecting import INJECT, python

SCRIPT = """
    import copy, io, json, sys, torch
    import torch.distributed, torch.nn.parallel
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.models import ddp
    from ddpdoctor_watch.training import gradients
    from ddpdoctor_watch.core import journal, progress

    events = []
    journal.write = lambda event, fields: events.append([event, fields]) or 0

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    layers = [torch.nn.Linear(8, 8) for _ in range(6)]
    layers[3] = torch.nn.Linear(8, 4096), torch.nn.Linear(4096, 8)
    model = torch.nn.Sequential(*layers[:3], *layers[3], *layers[4:])
    wrapper = Wrapper(model)
    parameters = list(model.parameters())
    kept = [each.view_as(each).grad_fn.next_functions[0][0] for each in parameters]  # as the reducer does
    ddp.remember(wrapper, parameters, [])
    gradients.watch(wrapper)
    (watched,) = gradients._watched
    names = sorted(probe.numbers.fields["name"] for probe in watched.probes.values())

    def backward(bad=False):
        progress.backwards += 1
        out = model(torch.randn(4, 8))
        loss = (out.square().sum(1) * (0.0 if bad else 1.0)).sqrt().sum()
        loss.backward()
        return loss.item()

    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    finite = [backward(), backward(bad=True), backward()]
    seen = [[event, fields["number"], fields.get("name")] for event, fields in events]
    events.clear()
    copied(torch.randn(4, 8)).sum().backward()
    checked = [probe.numbers.checked for probe in watched.probes.values()]
    plain = [each._backward_hooks for each in parameters]
    gradients.after_fork()
    backward(bad=True)
    events_after = list(events)
    wrappers = []
    for number in range(6):  # the first is gone, as those of earlier folds are
        wrappers.append(Wrapper(torch.nn.Linear(2, 2)))
        ddp.remember(wrappers[-1], list(wrappers[-1].parameters()), [])
        gradients.watch(wrappers[-1])
        if not number:
            wrappers.clear()
    living = sum(each.wrapper() is not None for each in gradients._watched)
    print(json.dumps([names, finite, seen, checked, plain, events_after, [living, len(gradients._watched)]]))
"""


def test_gradients_are_seen_before_they_are_reduced(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    names, losses, seen, checked, plain, after, counts = json.loads(done.stdout)
    assert len(names) == 4
    assert "0.bias" in names  # a layer's bias tells of its weight
    assert all(loss == loss for loss in losses)  # finite: it turned in the backward
    assert {(event, number) for event, number, _ in seen} == {("nonfinite", 2), ("finite", 3)}
    assert {name for _, _, name in seen} == set(names)
    assert checked == [3] * 4  # a copy of the model is not looked at
    assert plain == [None] * len(plain)
    assert after == []
    assert counts == [4, 5]
