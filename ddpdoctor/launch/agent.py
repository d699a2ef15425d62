"""The agent process of one node.

It meets the other nodes, runs the ranks under torch's elastic agent, and shares what was seen.

It is forked from the forkserver, so torch is there. The supervisor (the command itself, without torch)
watches what it writes, tells it over a pipe what to do next, and may kill it at any moment.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpdoctor.evidence import decode, encode
from ddpdoctor.launch.failure import RankFailure
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.processes import follow_parent
from ddpdoctor.launch.wire import EventWriter, word_exception

if TYPE_CHECKING:
    from ddpdoctor.launch.meeting.exchange import Exchange


def agent_file(workdir: str) -> Path:
    """Return where the agent of a node writes its events."""
    return Path(workdir) / "agent.jsonl"


def agent_log(workdir: str) -> Path:
    """Return where the agent's own stdout and stderr go."""
    return Path(workdir) / "agent.log"


def run_agent(plan_data: dict[str, Any], facts: dict[str, Any], commands: Connection) -> None:
    """Run one node's part from the meeting to the exchange of evidence.

    Args:
        plan_data: an encoded `Plan`.
        facts: the encoded `NodeFacts` of this node, for the others.
        commands: the supervisor sends ``("publish", path)`` when this node's evidence is complete.
    """
    plan = decode(Plan, plan_data)
    follow_parent(launches=True)
    _redirect_output(agent_log(plan.workdir))
    # torch makes this directory when it describes a failed rank; here it goes away with ours.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{plan.workdir}/inductor")
    writer = EventWriter(agent_file(plan.workdir))
    writer.write("hello", pid=os.getpid())
    try:
        _work(plan, facts, commands, writer)
    except Exception as problem:
        traceback.print_exc()  # into the agent's log
        _note_defect(plan, writer, problem)
        writer.write("broken", text=f"the agent failed: {word_exception(problem)}")
    finally:
        writer.write("bye")


def _work(plan: Plan, facts: dict[str, Any], commands: Connection, writer: EventWriter) -> None:
    from ddpdoctor.launch.meeting.party import Meeting

    if not plan.meets:
        _run_world(plan, writer)
        return
    meeting = Meeting(plan, facts, writer)
    try:
        together = meeting.gather()
        exchange = meeting.exchange()
        if exchange is None:
            writer.write("exchanged", path=None)
            return
        done = threading.Event()
        if not together:
            _publish(exchange, commands, done)
            return
        threading.Thread(target=exchange.watch_others, args=(done,), daemon=True).start()
        publishing = threading.Thread(target=_publish, args=(exchange, commands, done), daemon=True)
        publishing.start()
        _run_world(meeting.plan, writer)
        publishing.join()
    finally:
        meeting.close()


def _publish(exchange: Exchange, commands: Connection, done: threading.Event) -> None:
    """Wait for this node's evidence and share it; the pipe closing means that the supervisor is gone."""
    try:
        while True:
            command, value = commands.recv()
            if command == "cut":
                exchange.announce_cut(value)
            elif command == "publish":
                done.set()
                exchange.publish(Path(value))
                return
    except (EOFError, OSError):
        return


def _run_world(plan: Plan, writer: EventWriter) -> None:
    from ddpdoctor.launch.elastic import run_ranks
    from ddpdoctor.launch.external import run_one_rank

    def report(failure: RankFailure) -> None:
        writer.write("rank-failed", **encode(failure))

    writer.write("world-begin")
    try:
        (run_one_rank if plan.external else run_ranks)(plan, report)
    except Exception as problem:
        traceback.print_exc()  # into the agent's log
        _note_defect(plan, writer, problem)
        writer.write("world-broken", text=f"torch's elastic agent failed: {word_exception(problem)}")
    writer.write("world-end")


def _note_defect(plan: Plan, writer: EventWriter, problem: BaseException) -> None:
    from ddpdoctor.launch.defects import describe_defect

    defect = describe_defect(problem, f"the agent of node {plan.node}", "rendezvous", plan.node)
    if defect is not None:
        writer.emit("defects", defect)


def _redirect_output(path: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
