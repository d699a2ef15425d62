"""Gathered tensors that a loss takes as constants are told from those that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.injecting import INJECT, python, torchrun

SCRIPT = """
    import sys, torch
    import torch.distributed, torch.nn.parallel
    from torch.utils.checkpoint import checkpoint
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.core import budget, journal
    from ddpdoctor_watch.training import gathers

    torch.manual_seed(0)   # which is an event itself
    events = []
    budget.write = lambda event, fields: events.append(fields["class"])
    journal.write = lambda event, fields: events.append(fields) or 0
    source = torch.randn(5, 7, requires_grad=True)
    z = source * 2

    def call(given, outputs, op="all_gather"):
        gathers.note_call(op, given, outputs, None)

    def end(loss):
        gathers.look_through(loss)
        loss.backward(retain_graph=True)
        gathers.state.pending.clear()
        gathers.state.calls = 0

    def fresh():
        return [z.detach().clone(), torch.randn(5, 7)]

    def told():
        found, events[:] = list(events), []
        return found

    parts = fresh()
    call(z, parts)
    end((z @ torch.cat(parts).t()).square().sum())
    print("all", told())
    call(z, parts)
    end((z @ parts[1].t()).sum())
    print("other", told())
    whole = torch.cat(fresh())
    call(z, whole, "all_gather_into_tensor")
    end(torch.cdist(z, whole).sum())
    print("whole", told())
    call(z, parts)
    end((z @ torch.cat([z, parts[1]]).t()).sum() + (z.detach() - z).square().sum())
    print("put back", told())
    call(z.detach(), parts)
    end((z @ torch.cat(parts).t()).sum())
    print("detached", told())
    call(z, parts)
    end(z.square().sum())
    print("metric", told())
    call(z, parts)
    end(checkpoint(lambda one: (one @ torch.cat(parts).t()).sum(), z, use_reentrant=False))
    print("packed", told())
    loss = (z @ torch.cat(parts).t()).sum()
    loss.backward()
    call(z, parts)
    gathers.look_through(loss)
    print("used", told())
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    done = python(tmp_path_factory.mktemp("gathers"), SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    return dict(line.split(" [") for line in done.stdout.replace("]", "").splitlines())


@pytest.mark.parametrize(
    ("case", "op"), [("all", "all_gather"), ("other", "all_gather"), ("whole", "all_gather_into_tensor")]
)
def test_constants_of_a_loss_are_told(told: dict[str, str], case: str, op: str) -> None:
    assert told[case] == f"'{op}'"


@pytest.mark.parametrize("case", ["put back", "detached", "metric", "packed", "used"])
def test_what_is_right_or_not_to_be_seen_is_passed_over(told: dict[str, str], case: str) -> None:
    assert told[case] == ""


RECORDED = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    z = torch.randn(5, 7, requires_grad=True) * 2
    parts = [torch.empty(5, 7) for _ in range(2)]
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            dist.{gathering}
        (z @ torch.cat(parts).t()).sum().backward(retain_graph=True)
        dist.barrier()
"""


@pytest.mark.parametrize("gathering", ["all_gather(parts, z)", "all_gather(tensor_list=parts, tensor=z)"])
def test_a_call_while_no_gradients_are_recorded_is_passed_over(tmp_path: Path, gathering: str) -> None:
    watched = torchrun(tmp_path, RECORDED.format(gathering=gathering))
    assert watched.returncode == 0, watched.stderr
    for journal in watched.ranks():
        barrier, told = (journal.path.read_text().find(text) for text in ('"barrier"', '"gathered"'))
        assert len(journal.all("gathered")) == 1, "of the two calls"
        assert 0 < barrier < told, "it is the second one"
