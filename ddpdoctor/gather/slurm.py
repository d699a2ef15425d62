"""Why Slurm ends a job: asked of its controller, for what slurmstepd prints never reaches the tasks."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.gather.deadline import ToolError, run_tool

LIMIT_S = 3.0
"""Seconds for one answer of slurmctld. Slurm sends SIGKILL after KillWait or GraceTime, 30 s by default."""
_NONE = ("", "None", "N/A", "Unknown")
_STATES = {
    "PREEMPTED": "Slurm preempted the job",
    "TIMEOUT": "the job's time limit in Slurm was reached",
    "DEADLINE": "the job's deadline in Slurm was reached",
    "NODE_FAIL": "Slurm lost a node of the job",
    "CANCELLED": "the job was canceled in Slurm",
}
"""State of a job (squeue(1), JOB STATE CODES) -> words on why it ended."""


def ask_why_ended(environ: Mapping[str, str]) -> str | None:
    """Return words on why Slurm told the job of this task to end; None where it did not, or does not say.

    Args:
        environ: of the task.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isascii() or not job.isdigit():
        return None
    try:
        answer = run_tool(["scontrol", "show", "job", "-o", job], LIMIT_S)
    except ToolError:
        return None
    return read_why_ended(answer, environ.get("SLURM_RESTART_COUNT", ""))


def read_why_ended(answer: str, restarts: str = "") -> str | None:
    """Read what ``scontrol show job -o`` says of a job.

    Args:
        answer: one line of ``Name=value``; a job that is queued again has no PreemptTime any more.
        restarts: how often it had been started again when its task began; nothing for never.
    """
    fields = dict(word.partition("=")[::2] for word in answer.split() if "=" in word)
    if fields.get("PreemptTime", "") not in _NONE:
        return _STATES["PREEMPTED"]
    known = fields.get("Restarts", "")
    if known.isdigit() and (restarts or "0").isdigit() and int(known) > int(restarts or "0"):
        return "Slurm requeued the job (preemption, a failed node, or scontrol requeue)"
    return _STATES.get(fields.get("JobState", ""))
