"""What torchrun prints around the words of its ranks, for tests of texts that users report."""

from __future__ import annotations

from collections.abc import Sequence

AGENT = "{level}1121 01:30:06.0{n:02}000 {agent} torch/distributed/elastic/multiprocessing/api.py:"
BLOCK = """Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1028, in main
    run(args)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:{blank}
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{others}------------------------------------------------------------
Root Cause (first observed failure):
{root}============================================================
"""
NAMES = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def raised(rank: int, text: str) -> str:
    """The traceback of a rank as torch's hook prints it; ``text`` is the exception's line and what follows it."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 90, in <module>',
        "    main()",
        '  File "/job/train.py", line 42, in main',
        "    step(batch)",
        *text.splitlines(),
    ]
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def ended(
    rows: Sequence[tuple[int, int]], *, host: str = "localhost", first: int = 0, agent: int = 16843
) -> str:
    """What the agent prints at the end.

    Args:
        rows: rank and status of each worker, the one that failed first in front; a signal is negative.
        host: name of the agent's host.
        first: rank of its local rank 0.
        agent: its process id; those of the workers follow.
    """
    sent, told = [], []
    for n, (rank, status) in enumerate(rows):
        pid, local = agent + 1 + rank, rank - first
        if status == -15:
            head = AGENT.format(level="W", n=n, agent=agent)
            sent.append(f"{head}1028] Sending process {pid} closing signal SIGTERM\n")
        words = (
            f"Signal {-status} ({NAMES[-status]}) received by PID {pid}"
            if status < 0
            else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        )
        told.append(
            f"[{n}]:\n  time      : 2026-11-21_01:30:06\n  host      : {host}\n"
            f"  rank      : {rank} (local_rank: {local})\n  exitcode  : {status} (pid: {pid})\n"
            f"  error_file: <N/A>\n  traceback : {words}\n"
        )
    rank, status = rows[0]
    head = AGENT.format(level="E", n=50, agent=agent)
    failed = f"{head}1002] failed (exitcode: {status}) local_rank: {rank - first} (pid: {agent + 1 + rank})"
    others = "".join(told[1:]) or "  <NO_OTHER_FAILURES>\n"
    return (
        "".join(sent)
        + f"{failed} of binary: /opt/venv/bin/python3\n"
        + BLOCK.format(blank=" ", others=others, root=told[0])
    )
