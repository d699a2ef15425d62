"""Commands to paste after a crash: the same job again, with something changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.text.shell import quote_word
from ddpdoctor_checks.common.commands import DEFAULT_PORT, FIXED, meeting_point
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.places import join_endpoint
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis

ELASTIC = ("torchrun", "ddpdoctor", "torch.distributed.run", "torch.distributed.launch")
"""Launchers whose ranks ``ddpdoctor run`` starts the same way."""


def launcher_of(diagnosis: Diagnosis) -> str:
    """Return who started the ranks: torchrun, accelerate, srun, python."""
    return diagnosis.job.launcher if diagnosis.job is not None else diagnosis.evidence.launch.launcher


def script_words(diagnosis: Diagnosis) -> list[str]:
    """Return the user's script and its arguments as they were given.

    Where nobody saw them: the file in which most tracebacks begin, else ``train.py``.
    """
    for view in diagnosis.views.ranks:
        if view.process is not None and view.process.command:
            return _script_of(view.process)
    begun = Counter(
        own[-1].file
        for view in diagnosis.views.all
        for exception in view.exceptions
        if (own := user_frames(exception.frames)) and own[-1].function == "<module>"
    )
    return [begun.most_common(1)[0][0]] if begun else ["train.py"]


def _script_of(process: ProcessRecord) -> list[str]:
    command = list(process.command)
    if "-m" in command[:4]:
        return command[command.index("-m") :]
    script = process.script
    if script is None:
        return ["train.py"]
    name = PurePosixPath(script).name
    for number, word in enumerate(command[:6]):
        if PurePosixPath(word).name == name:
            return [script, *command[number + 1 :]]
    return [script]


def rerun(
    diagnosis: Diagnosis,
    *options: str,
    environment: Sequence[str] = (),
    nproc: int | None = None,
    port: int | None = None,
    torchrun: bool = False,
    shell: str = "",
) -> str:
    """Return the command that runs the job once more.

    Args:
        diagnosis: the job.
        options: for ``ddpdoctor run``, or for torchrun where ``torchrun`` is set.
        environment: ``NAME=value`` before the command.
        nproc: another number of ranks on the node; then on one node only.
        port: another port for the rendezvous.
        torchrun: name torchrun itself, for what only it can be told.
        shell: an option that the shell has to expand, put before the script as it is.
    """
    launch = diagnosis.evidence.launch
    script = script_words(diagnosis)
    launcher = launcher_of(diagnosis)
    if launcher not in ELASTIC and not torchrun:
        command = next(
            (v.process.command for v in diagnosis.views.others if v.process and v.process.command), None
        )
        words = ["ddpdoctor", "run", *options, "--", *(command or ["python", *script])]
        return _join(environment, words)
    asked = _torchrun_words(diagnosis)
    if asked is not None:
        asked = _without(asked, _list_valued(options))  # of an option that is there twice the last counts
        if nproc is not None:
            asked = ["--nproc", str(nproc), *_without(asked, _COUNTS)]
        if port is not None:
            asked = ["--master-port", str(port), *_without(asked, _PORTS)]
        start = ["torchrun"] if torchrun else ["ddpdoctor", "run"]
        head = _join(environment, [*start, *options])
        return " ".join(part for part in (head, shell, _join((), asked)) if part)
    count = str(nproc or max(launch.nproc, 1))
    parts = ["torchrun", "--nproc-per-node", count] if torchrun else ["ddpdoctor", "run", "--nproc", count]
    if launch.nnodes > 1 and nproc is None:
        parts += _node_options(diagnosis, port)
    elif port is not None:
        parts += ["--master-port", str(port)]
    if shell:
        return f"{_join(environment, [*parts, *options])} {shell} {_join((), script)}"
    return _join(environment, [*parts, *options, *script])


_COUNTS = ("--nproc", "--nproc-per-node", "--nproc_per_node", "--nnodes", "--node-rank", "--node_rank")
_PORTS = ("--master-port", "--master_port", "--rdzv-endpoint", "--rdzv_endpoint")
_ELASTIC_COMMANDS = ("torch.distributed.run", "torchrun", "torch.distributed.launch")


def _torchrun_words(diagnosis: Diagnosis) -> list[str] | None:
    """Return what torchrun was given, its own options and the script's; None where nobody saw it start."""
    for view in diagnosis.views.others:
        command = list(view.process.command) if view.process is not None and view.role == "launcher" else []
        for number, word in enumerate(command[:8]):
            if PurePosixPath(word).name in _ELASTIC_COMMANDS and command[number + 1 :]:
                return command[number + 1 :]
    return None


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a command line without some options and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in names)):
            kept.append(word)
    return kept


def _list_valued(options: Sequence[str]) -> list[str]:
    """Return the names of options that take a value, in both spellings."""
    pairs = pairwise(options)
    names = [name for name, value in pairs if name.startswith("--") and not value.startswith("--")]
    return [*names, *(f"--{name[2:].replace('-', '_')}" for name in names)]


def _node_options(diagnosis: Diagnosis, port: int | None) -> list[str]:
    launch = diagnosis.evidence.launch
    host, known = meeting_point(launch)
    chosen = port or known or DEFAULT_PORT
    parts = ["--nnodes", str(launch.nnodes)]
    if launch.rdzv_backend in FIXED:
        return [
            *parts,
            "--node-rank",
            str(launch.node_rank or 0),
            "--master-addr",
            host,
            "--master-port",
            str(chosen),
        ]
    named = ["--rdzv-id", launch.rdzv_id] if launch.rdzv_id else []
    return [*parts, "--rdzv-backend", launch.rdzv_backend or "c10d", "--rdzv-endpoint", join_endpoint(host, chosen),
            *named]  # fmt: skip


def _join(environment: Sequence[str], words: Sequence[str]) -> str:
    return " ".join([*environment, *(quote_word(word) for word in words)])
