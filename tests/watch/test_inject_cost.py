"""What a watched step does beside torch's own work, counted: times say nothing on a machine that does other things."""

from __future__ import annotations

from pathlib import Path

from tests.watch.injecting import torchrun

EVENTS = 12
"""Audit events of ours in a step, each of which calls a function of ours (`files`): looks at ``f_code``, ``id()``,
``sys._getframe()``. It was 44 once, which cost more than all that was looked at."""
TRAIN = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counting, events = False, []

    def count(event, args):
        global counting
        if counting:
            counting = False
            file = sys._getframe(1).f_code.co_filename
            if "ddpdoctor_watch" in file:
                events.append(event)
            counting = True

    sys.addaudithook(count)
    for step in range(150):
        counting = step >= 140  # no step at which more is looked at
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4)).sum()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    counting = False
    os.write(1, f"events {len(events) / 10} {sorted(set(events))}\\n".encode())  # in one piece: ranks share it
    dist.destroy_process_group()
"""


def test_a_step_makes_few_audit_events(tmp_path: Path) -> None:
    done = torchrun(tmp_path, TRAIN)
    told = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("events")]
    assert told
    assert all(0 < float(count) <= EVENTS for count in told), done.stdout
