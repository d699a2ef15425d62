"""Lets each function of ours that runs in a rank raise in turn, under a small DDP job of two gloo ranks.

Any interpreter will do, so any torch: ``python -m tests.watch.breaking_hooks [PYTHON]`` goes through all of them.
The functions are those that a first run has called; one is broken by other code in its place, so that whoever holds
it calls what raises.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INJECT = Path(__file__).parents[2] / "ddpdoctor" / "watch" / "inject"
LIMIT_S = 240.0
ATTEMPTS = 5
ABORTED = "terminate called without an active exception"
EDGES = frozenset(
    """
    calls.decorators:_Counting.__enter__ calls.decorators:_Counting.__exit__ calls.decorators:_Counting.__init__
    calls.decorators:_Seeing.__enter__ calls.decorators:_Seeing.__exit__ calls.decorators:_Seeing.__init__
    calls.decorators:_note_end calls.ring:begin calls.ring:end calls.works:_Asking.__get__ calls.works:_note_returned core.journal:_write
    core.journal:trouble core.journal:failed core.wrapping:guard core.wrapping:guarded finder:_Finder.find_spec finder:_patch interpreter.hooks:_note_child
    models.joins:Told.__get__ models.running:_Asked.__get__ training.loaders:_Epoch.take training.steps:after_step
    training.steps:before_step training.steps:_begin_step training.steps:_end_step training.gradients:_Probe._look
    """.split()
)
"""What torch and Python call themselves: it holds the guard, or stands in torch's place; without it the call of the
program could not be made."""
JOB = """
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.arange(24.0).reshape(24, 1) / 24)
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    seen = model(torch.ones(4, 4)).sum()
work = dist.all_reduce(seen, group=pair, async_op=True)
work.wait()
if rank == 0:
    dist.send(seen, 1)
else:
    dist.recv(seen, 0)
gathered = [None, None]
dist.all_gather_object(gathered, {"rank": rank})
try:
    dist.new_group([0, 7])
except Exception as error:
    print("refused", type(error).__name__)
digest = sum(p.detach().double().sum().item() for p in model.parameters())
print(rank, f"{digest:.12f} {seen.item():.9f}", gathered, flush=True)
del model
time.sleep(0.5)  # torch up to 2.7 may hang where groups are destroyed right after a collective
dist.destroy_process_group()
sys.exit(7)
"""
HOOK = """
import os
import sys

target = os.environ.get("BREAK", "")
if target == "list":
    import atexit

    seen = {}

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and "ddpdoctor_watch" in code.co_filename and not code.co_freevars:
            name = getattr(code, "co_qualname", None)
            module = code.co_filename.rpartition("ddpdoctor_watch/")[2][:-3].replace("/", ".")
            seen.setdefault((module, code.co_name, code.co_firstlineno))

    def write():
        sys.setprofile(None)
        names = set()
        for module, name, line in seen:
            held = sys.modules.get("ddpdoctor_watch." + module)
            for owner in [held, *vars(held).values()] if held else ():
                found = vars(owner).get(name) if hasattr(owner, "__dict__") else None
                found = getattr(found, "__func__", found)
                code = getattr(found, "__code__", None)
                if code is not None and (code.co_name, code.co_firstlineno) == (name, line):
                    path = name if owner is held else owner.__name__ + "." + name if isinstance(owner, type) else ""
                    names.update([module + ":" + path] if path else [])
        with open(os.environ["LISTED"] + os.environ.get("RANK", ""), "w") as file:
            file.write("\\n".join(sorted(names)))

    atexit.register(write)
    sys.setprofile(note)
elif target:
    import importlib

    def broken(*args, **kwargs):
        raise ZeroDivisionError("made to fail")

    module, _, path = target.partition(":")
    found = importlib.import_module("ddpdoctor_watch." + module)
    for part in path.split("."):
        found = vars(found)[part]
    found = getattr(found, "__func__", found)
    while found.__code__.co_freevars:  # behind a decorator of ours
        held = [cell.cell_contents for cell in found.__closure__]
        found = next(each for each in held if hasattr(each, "__code__"))
    found.__code__ = broken.__code__
"""


@dataclass(frozen=True)
class Ended:
    """How the ranks of a job ended."""

    codes: tuple[int, ...]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    troubles: tuple[str, ...] = ()
    """What was said of failures of ours."""


def run_job(folder: Path, python: str = sys.executable, *, watched: bool = True, target: str = "") -> Ended:
    """Run the two ranks, again where torch has aborted one at its exit, as it does now and then without us (ERR010).

    Args:
        folder: new; everything is written there.
        python: an interpreter that has a torch.
        watched: put the hooks in.
        target: ``module:function`` of ours that raises; ``list`` writes down which are called.
    """
    for number in range(ATTEMPTS):
        ended = _run_once(folder / f"attempt-{number}", python, watched=watched, target=target)
        if not any(ABORTED in text for text in ended.stderr):
            break
    return ended


def _run_once(folder: Path, python: str, *, watched: bool, target: str) -> Ended:
    hooks = folder / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(HOOK)
    (folder / "job.py").write_text(JOB)
    (folder / "run" / "processes").mkdir(parents=True)
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DDPDOCTOR", "COVERAGE", "COV_"))}
    ranks = []
    for rank in (0, 1):
        variables = {
            **kept,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank),
            "LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join([str(INJECT), str(hooks)] if watched else [str(hooks)]),
            "BREAK": target, "LISTED": str(folder / "listed"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if watched:
            variables["DDPDOCTOR_RUN"] = str(folder / "run")
        ranks.append(
            subprocess.Popen(
                [python, "job.py"],
                cwd=folder,
                env=variables,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    try:
        ended = [each.communicate(timeout=LIMIT_S) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    return Ended(
        tuple(each.returncode for each in ranks),
        tuple(out for out, _ in ended),
        tuple(err for _, err in ended),
        tuple(_read_troubles(folder / "run" / "processes")),
    )


def _read_troubles(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "trouble":
                yield f"{event['where']}: {event['text']}"


def list_targets(folder: Path, python: str = sys.executable) -> list[str]:
    """Return the functions of ours that ranks call, as ``module:function``."""
    run_job(folder, python, target="list")
    return sorted(
        {line for path in folder.glob("attempt-*/listed?") for line in path.read_text().splitlines()} - EDGES
    )


def main() -> None:
    """Let each function raise, and print those whose failure the job has felt."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    chosen = sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="breaking-hooks-") as name:
        plain = run_job(Path(name, "plain"), python, watched=False)
        targets = chosen or list_targets(Path(name, "list"), python)
        print(f"{len(targets)} functions; plain: {plain}")
        felt = []
        for number, target in enumerate(targets):
            ended = run_job(Path(name, str(number)), python, target=target)
            same = (ended.codes, ended.stdout, ended.stderr) == (plain.codes, plain.stdout, plain.stderr)
            said = any("made to fail" in text for text in ended.troubles)
            if not same:
                felt.append(target)
            print(
                target,
                "same" if same else f"FELT {ended}",
                f"said {len(ended.troubles)}" if said else "not said",
                flush=True,
            )
        print(f"{len(felt)} felt: {felt}")
    sys.exit(bool(felt))


if __name__ == "__main__":
    main()
