"""Checkpoints of which nothing goes into a model, or that go into one that was wrapped, are seen, and torch's own function stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.loads import EmptyLoad
from ddpdoctor.judge import NotApplicable
from ddpdoctor.watch.readers.loads import fold_late_loads, fold_loads
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor_checks.training import find_empty_loads
from tests.watch.injecting import INJECT, python

SCRIPT = """
    import copy, json, pickle, sys, traceback, torch
    from torch import nn
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.core import journal
    from ddpdoctor_watch.models import loads

    events = []
    journal.write = lambda event, fields: events.append([event, fields]) or 0
    loads.patch_module(torch.nn.modules.module)

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    def build():
        return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def told():
        found, events[:] = list(events), []
        return found

    state, wrapped = build().state_dict(), Wrapper(build()).state_dict()
    net = build()
    result = net.load_state_dict(wrapped, strict=False)
    kept = [type(result).__name__, len(result.missing_keys), copy.copy(result) == result]
    kept.append(pickle.loads(pickle.dumps(result)) == result)
    out = {"extra": told()}
    other = Wrapper(build())
    other.load_state_dict(state, strict=False)
    out["lacking"] = told()
    other.module.load_state_dict(state)
    out["healed"] = told()
    build().load_state_dict({"a.b": torch.ones(1)}, strict=False)
    build().load_state_dict({**state, "module.more": torch.ones(1)}, strict=False)
    build().load_state_dict({}, strict=False)
    out["others"] = told()
    try:
        build().load_state_dict(wrapped)
    except RuntimeError:
        out["raised"] = [told(), "ddpdoctor_watch" in traceback.format_exc()]
    print(json.dumps([kept, out]))
"""


def test_loads_of_nothing_are_seen(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    kept, told = json.loads(done.stdout)
    assert kept == ["_IncompatibleKeys", 4, True, True]
    ((event, fields),) = told["extra"]
    assert (event, fields["prefix"], fields["extra"], fields["count"]) == ("load", "module.", True, 4)
    assert fields["name"] == "module.0.weight"
    ((_, fields),) = told["lacking"]
    assert (fields["prefix"], fields["extra"], fields["number"]) == ("module.", False, 2)
    assert told["healed"] == [["loaded", {"number": 2}]]
    assert told["others"] == []
    assert told["raised"] == [[], False]


LINE = (Frame("train.py", 7, "resume", "model.load_state_dict(state, strict=False)"),)
EVENT: dict[str, Any] = {
    "event": "load", "number": 1, "class": "__main__.Net", "prefix": "module.", "extra": True, "count": 4,
    "name": "module.a", "frames": [],
}  # fmt: skip


def test_loads_that_were_made_good_are_left_out(tmp_path: Path) -> None:
    good = {"event": "loaded", "number": 1}
    ranks: Any = {0: [EVENT], 1: [EVENT, {**EVENT, "number": 2}], 2: [EVENT, good]}
    (found,) = fold_loads(ranks, Shortener(tmp_path))
    assert found == EmptyLoad(RankSet([0, 1]), "__main__.Net", "module.", True, "module.a", 4)


def restored(print_: str, forwards: int) -> dict[str, Any]:
    told = {"wrapper": 1, "forwards": forwards, "class": "__main__.Net", "print": print_, "frames": []}
    return {"event": "restored", **told}


@pytest.mark.parametrize(
    ("made", "who", "apart", "forwards"),
    [
        ({0: ["a"], 1: ["a"]}, [0, 1], [], 0),
        ({0: ["a", "b"], 1: ["a", "c"], 2: ["a", "c"]}, [0, 1, 2], ["1-2", "0"], 5),
        ({0: ["a", "b"], 1: ["a"]}, [0, 1], [], 0),
        ({0: [""], 1: ["b"]}, [0, 1], [], 0),
        ({0: ["a"], 1: []}, [0], [], 0),
    ],
    ids=["alike", "apart", "more often", "unread", "alone"],
)
def test_loads_into_a_wrapped_model_are_compared(
    tmp_path: Path, made: dict[int, list[str]], who: list[int], apart: list[str], forwards: int
) -> None:
    events: Any = {
        rank: [EVENT, *(restored(each, 5 * n + rank) for n, each in enumerate(prints))]
        for rank, prints in made.items()
    }
    (found,) = fold_late_loads(events, Shortener(tmp_path))
    assert (found.ranks, found.wrapper, found.target) == (RankSet(who), 1, "__main__.Net")
    assert [str(share.ranks) for share in found.apart] == apart
    assert found.forwards == forwards


WRAPPED = """
    import json, sys, torch
    from torch import nn
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch import torchpatches
    from ddpdoctor_watch.core import journal
    from ddpdoctor_watch.models import ddp, loads

    events = []
    journal.write = lambda event, fields: events.append([event, fields]) or 0
    loads.patch_module(torch.nn.modules.module)
    torchpatches.patch_optimizer(sys.modules["torch.optim.optimizer"])

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    net, bare = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3)
    wrapper = Wrapper(net)
    ddp.remember(wrapper, list(wrapper.parameters()), [])
    bare.load_state_dict(bare.state_dict())
    net.load_state_dict(net.state_dict())
    wrapper.load_state_dict(wrapper.state_dict())
    net[1].load_state_dict(bare.state_dict())
    optimizer = torch.optim.Adam(net.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(50):
        net.load_state_dict(net.state_dict())
    print(json.dumps(events))
"""


def test_loads_into_a_wrapped_model_and_into_an_optimizer_are_seen(tmp_path: Path) -> None:
    done = python(tmp_path, WRAPPED, str(INJECT))
    assert done.returncode == 0, done.stderr
    told = [fields for event, fields in json.loads(done.stdout) if event == "restored"]
    names = [(fields["wrapper"], fields["class"].rpartition(".")[2]) for fields in told]
    assert names[:4] == [(1, "Sequential"), (1, "Sequential"), (1, "Linear"), (0, "Adam")]
    assert told[0]["print"] == told[1]["print"] != told[4]["print"]
    assert len(told) == 20


@pytest.mark.parametrize(("extra", "said"), [(True, "begin with module."), (False, "lack module.")])
def test_a_load_of_nothing_is_named_with_its_line(extra: bool, said: str) -> None:
    loads = [
        EmptyLoad(RankSet([rank]), "__main__.Net", "module.", extra, "module.a", 4, LINE) for rank in (0, 1)
    ]
    nodes = tuple(Training(node, RankSet([node]), loads=(load,)) for node, load in enumerate(loads))
    (found,) = find_empty_loads(Evidence(training=nodes))
    assert (found.ranks, found.severity, found.where[0].line) == (RankSet([0, 1]), None, 7)
    assert said in found.message
    with pytest.raises(NotApplicable):
        list(find_empty_loads(Evidence()))
