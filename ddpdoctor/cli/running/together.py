"""`run` as one of several tasks of srun or mpirun: one verdict for the job, given by one of them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
from typing import TYPE_CHECKING

from ddpdoctor.cli.output.display import complain

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.watch.commandline import Split
    from ddpdoctor.watch.live.stillness import Exchange
    from ddpdoctor.watch.rundir import RunDirectory
    from ddpdoctor.watch.tasks.folder import Folder
    from ddpdoctor.watch.tasks.identity import Task
    from ddpdoctor.watch.tasks.verdict import Bench


class Together:
    """This command among the tasks of its job; where it is alone, all of this does nothing.

    Args:
        task: which one it is; None where it is alone, or its tasks cannot meet.
        folder: where they meet.
        wait_s: how long the one that judges waits for the others.
    """

    def __init__(
        self, task: Task | None = None, folder: Folder | None = None, wait_s: float | None = None
    ) -> None:
        self._task, self._folder = task, folder
        self._bench: Bench | None = None
        self._wait_s = wait_s

    @property
    def run_directory(self) -> str | None:
        """Where this task keeps its run; None where that is not said here."""
        return str(self._folder.path / self._folder.slot) if self._folder is not None else None

    def begin(self) -> None:
        """Let the others see that this task is here."""
        if self._folder is None:
            return
        try:
            self._folder.start()
        except (OSError, RuntimeError) as problem:
            complain(f"ddpdoctor: the other tasks cannot see this one: {problem}")

    def tell_first(self, text: str) -> None:
        """Say what every task would say in the same words."""
        if self._task is None or self._task.number == 0:
            complain(text)

    def tell(self, text: str) -> None:
        """Say what concerns the whole job, while it lives."""
        if self._folder is None or self._folder.leads():
            complain(text)

    def make_exchange(self, directory: RunDirectory) -> Exchange | None:
        """Return how looks come to the other tasks; None for the way of torchrun's agents."""
        from ddpdoctor.watch.tasks.looks import TaskExchange

        return TaskExchange(directory.kept, self._folder) if self._folder is not None else None

    def outlive_requests(self) -> None:
        """Let no request to end that comes from now on end this process before the verdict: the job got its own.

        Launchers send one to every task once one has failed. Called while `run_job` takes them.
        """
        if self._folder is None:
            return
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, lambda *_: None)

    def join(self, evidence: Evidence, *, failed: bool) -> Evidence | None:
        """Return the evidence to judge: of all tasks; None where another one judges.

        Args:
            evidence: of this task.
            failed: its part of the job did.
        """
        if self._folder is None:
            return evidence
        from ddpdoctor.watch.tasks.joining import join_tasks, write_end
        from ddpdoctor.watch.tasks.verdict import Bench

        try:
            write_end(self._folder, evidence)
        except OSError as problem:
            complain(f"ddpdoctor: the other tasks did not receive the evidence of this task: {problem}")
        self._bench = Bench(self._folder, self._wait_s)
        seen = self._bench.come(failed=failed)
        return join_tasks(self._folder, evidence, seen) if seen is not None else None

    def shown_in(self, directory: RunDirectory) -> RunDirectory:
        """Return the directory that gets the report."""
        if self._folder is None:
            return directory
        return dataclasses.replace(
            directory, path=self._folder.path, descriptor=self._folder.descriptor, note=None
        )

    def give_up(self) -> None:
        """The job did not begin."""
        if self._folder is not None:
            self._folder.remove()

    def end(self) -> None:
        """The verdict was given here, or will not be."""
        if self._bench is not None:
            self._bench.leave()
        if self._folder is not None:
            self._folder.close()

    @property
    def is_one_of_many(self) -> bool:
        """Whether other tasks of the job are watched by other commands."""
        return self._task is not None


def find_others(options: argparse.Namespace, split: Split) -> Together:
    """Return this command's place among the tasks of its job."""
    from ddpdoctor.watch.rundir import RUNS
    from ddpdoctor.watch.tasks.folder import open_job
    from ddpdoctor.watch.tasks.identity import find_task

    task = find_task(os.environ, split)
    if task is None:
        return Together()
    from pathlib import Path

    together = Together(task)
    try:
        folder = open_job(Path(getattr(options, "run_dir", None) or RUNS), task)
    except OSError as problem:
        together.tell_first(
            f"ddpdoctor: the {task.count} tasks of {task.launcher} cannot share a run directory "
            f"({problem.strerror or problem}): each writes its own report"
        )
        return together
    if getattr(options, "rerun", None) is not None:
        together.tell_first(f"ddpdoctor: --rerun {options.rerun} has no effect under {task.launcher}")
    return Together(task, folder, getattr(options, "nodes_wait", None))
