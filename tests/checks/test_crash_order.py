"""Order of blame where it is close: signals with and without a sender, threads, workers, pools, victims with words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord, Milestone, Moment, ProcessRecord
from ddpdoctor.judge import Finding
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.evidence import make_unstarted
from ddpdoctor.watch.launch.script import ScriptProblem
from ddpdoctor_checks.job.blame.failures import describe_exception
from tests.checks.crashed import all_raise
from tests.checks.jobs import CLOSED, START_NS, TIMED_OUT, Job, cause_of, judge

UNSEEN = "a process that was not watched"
FETCH = (
    Frame("loader.py", 19, "run", "text = raw.decode()"),
    Frame("/usr/lib/python3.11/threading.py", 9, "_b"),
)
STARVED = (Frame("/usr/lib/python3.11/queue.py", 179, "get"), Frame("train.py", 28, "<module>"))


def in_thread(job: Job, rank: int, seconds: float, kind: str = "thread") -> Job:
    """A thread, or a process of a pool, of one rank raises."""
    process = job.processes[rank]
    job.exceptions.append(
        ExceptionRecord(
            process.pid, "UnicodeDecodeError", "bad byte", FETCH, node=process.node, host=process.host, rank=rank,
            kind=kind, thread="prefetch", at=job.when(rank, seconds),
        )
    )  # fmt: skip
    return job


def test_a_rank_that_somebody_outside_ends_is_the_cause_also_where_it_is_noticed_late() -> None:
    found = cause_of(Job(4).complains([0, 1, 3], 10.0).dies(2, 15, 10.2, signal_sender=UNSEEN))
    assert (found.code, found.ranks, found.victims) == ("ERR005", RankSet([2]), RankSet([0, 1, 3]))
    assert f"killed by signal 15 (SIGTERM), sent by {UNSEEN}" in found.message


def test_a_rank_that_another_one_ends_says_so() -> None:
    found = cause_of(Job(2).complains([0]).dies(1, 9, 10.2, signal_sender="rank 0 (pid 1000)"))
    assert (found.code, found.ranks) == ("ERR005", RankSet([1]))
    assert "sent by rank 0 (pid 1000)" in found.message
    assert "memory" not in found.message


def test_a_rank_that_ends_itself_has_the_line() -> None:
    call = (Frame("train.py", 44, "stop", "os.kill(os.getpid(), 9)"),)
    found = cause_of(Job(2).complains([0]).dies(1, 9, 10.2, signal_sender="itself", exit_call=call))
    assert (found.ranks, found.where[0].line) == (RankSet([1]), 44)
    assert "sent itself signal 9 (SIGKILL)" in found.message


def test_what_the_parent_of_spawned_ranks_ends_are_victims() -> None:
    job = Job(3).raises(1, "KeyError", "'x'", 10)
    for rank in (0, 2):
        job.dies(rank, 15, 9.99, signal_sender="its parent (pid 5)")
    found = cause_of(job)
    assert (found.code, found.ranks, found.victims) == ("ERR001", RankSet([1]), RankSet([0, 2]))


def test_a_job_that_a_scheduler_ends_rank_by_rank_has_no_culprit() -> None:
    job = Job(2, exit_code=None, end={"signal": 15, "interrupted": "SIGTERM"})
    for rank in range(2):
        job.dies(rank, 15, 10 + rank * 0.01, signal_sender=UNSEEN)
    findings, verdict, _ = judge(job)
    assert findings == []
    assert verdict.code is None


@pytest.mark.parametrize(
    ("signal", "sender"),
    [(9, "the kernel or a process that was not watched"), (15, UNSEEN), (11, None), (7, None)],
)
def test_a_victim_with_words_of_its_own_does_not_win_over_a_death_that_is_noticed_after_it(
    signal: int, sender: str | None
) -> None:
    """`raise Lost("step 3") from None` of a rank that lost its peer comes before the launcher looks."""
    job = Job(3).raises(0, "Lost", "step 3 failed", 10.0).complains([2], 10.01)
    found = cause_of(job.dies(1, signal, 10.09, signal_sender=sender))
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([2]))


def test_a_death_long_after_an_exception_is_not_its_cause() -> None:
    job = Job(2).raises(0, "KeyError", "'x'", 10.0).dies(1, 11, 14.0)
    assert cause_of(job).ranks == RankSet([0])


def test_a_dump_says_when_a_rank_crashed() -> None:
    """Noticed within a second, but the dump is younger than the exception."""
    job = Job(2).raises(0, "KeyError", "'x'", 10.0).dies(1, 11, 10.09)
    when = Moment(START_NS + int(10.05 * 1e9))
    job.crashes.append(CrashRecord(1001, "Fatal Python error: Segmentation fault", rank=1, at=when))
    assert cause_of(job).ranks == RankSet([0])
    job.crashes[0] = replace(job.crashes[0], at=Moment(START_NS + int(9.95 * 1e9)))
    assert cause_of(job).ranks == RankSet([1])


def test_a_main_thread_that_starves_is_not_the_cause() -> None:
    job = in_thread(Job(2), 1, 6.0).raises(1, "_queue.Empty", "", 10.0, STARVED).complains([0])
    found = cause_of(job)
    assert (found.code, found.ranks, found.confidence) == ("ERR001", RankSet([1]), "medium")
    assert (found.where[0].file, found.where[0].line) == ("loader.py", 19)
    assert "(in thread prefetch)" in found.message


def test_a_main_thread_with_an_error_of_its_own_keeps_it_and_mentions_the_thread() -> None:
    job = in_thread(Job(2), 1, 6.0).raises(1, "KeyError", "'x'", 10.0).complains([0])
    found = cause_of(job)
    assert (found.where[0].file, found.where[0].line) == ("train.py", 71)
    assert any("in thread prefetch" in item.text and "4.00 s before" in item.text for item in found.evidence)


@pytest.mark.parametrize("end", ["complaint", "agent"])
def test_a_thread_that_died_long_ago_is_not_why_the_rank_lost_its_peer(end: str) -> None:
    """Telemetry of rank 0 died in the first minute; rank 1 failed an hour later."""
    job = in_thread(Job(2), 0, 5.0).raises(1, "KeyError", "'x'", 15.0)
    if end == "agent":
        job.terminates([0], 15.5)
    else:
        job.complains([0], 15.4)
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0]))
    (said,) = [item.text for item in found.evidence if item.kind == "victim"]
    assert ("Connection closed by peer" if end == "complaint" else "SIGTERM") in said


def test_a_thread_that_died_before_a_crash_is_only_mentioned() -> None:
    found = cause_of(in_thread(Job(2), 1, 5.0).dies(1, 11, 15.0).complains([0], 15.1))
    assert (found.code, found.ranks) == ("ERR004", RankSet([1]))
    assert any("in thread prefetch" in item.text for item in found.evidence)


def test_a_thread_is_the_cause_where_nobody_else_failed() -> None:
    job = in_thread(Job(3), 2, 6.0).complains([0, 1, 2], 10.0)
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([2]), RankSet([0, 1]))


def loader(job: Job, rank: int, pid: int, signal: int | None, **changes: Any) -> None:
    process = job.processes[rank]
    worker = ProcessRecord(pid, process.node, parent=process.pid, role="loader-worker", signal=signal)
    job.extra.append(replace(worker, **changes))


def test_a_crash_in_a_loader_worker_has_the_workers_line_and_then_the_ranks() -> None:
    job = Job(2).complains([0], 10.4)
    job.raises(
        1, "RuntimeError", "DataLoader worker (pid 77) is killed by signal: Segmentation fault. ", 10.0
    )
    loader(job, 1, 77, 11)
    frames = (
        Frame("data.py", 17, "__getitem__"),
        Frame("/usr/lib/python3.11/multiprocessing/process.py", 314, "_bootstrap"),
        Frame("train.py", 24, "main"),
    )
    job.crashes.append(
        CrashRecord(77, "Fatal Python error: Segmentation fault", frames, modules=("rows._C",))
    )
    found = cause_of(job)
    assert (found.code, found.ranks) == ("ERR004", RankSet([1]))
    assert [(place.file, place.line) for place in found.where[:2]] == [("data.py", 17), ("train.py", 71)]
    assert "in a DataLoader worker" in found.message
    assert found.details["modules"] == ["rows._C"]


@pytest.mark.parametrize("known", [True, False])
def test_a_loader_worker_that_was_killed_is_named_with_its_signal(known: bool) -> None:
    job = Job(2).complains([1], 10.4)
    job.raises(0, "RuntimeError", "DataLoader worker (pid 77) is killed by signal: Killed. ", 10.0)
    if known:
        loader(job, 0, 77, 9, signal_sender="rank 1 (pid 1001)")
    found = cause_of(job)
    assert (found.code, found.ranks) == ("ERR005", RankSet([0]))
    by = "sent by rank 1 (pid 1001)" if known else "sender unknown"
    assert f"one of its DataLoader workers was killed by signal 9 (SIGKILL), {by}" in found.message


REMOTE = '''
"""
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
  File "/srv/job/words.py", line 2, in encode
    return text.split()
AttributeError: 'NoneType' object has no attribute 'split'
"""'''


@pytest.mark.parametrize(
    ("wrapped", "line"),
    [(False, ("/srv/job/words.py", 2)), (True, ("/srv/job/words.py", 2))],
    ids=["as it came", "wrapped by the script"],
)
def test_a_pools_traceback_as_text_gives_the_line_inside(wrapped: bool, line: tuple[str, int]) -> None:
    remote = ExceptionRecord(0, "multiprocessing.pool.RemoteTraceback", REMOTE, link="cause")
    error = "'NoneType' object has no attribute 'split'"
    inner = ExceptionRecord(0, "AttributeError", error, (Frame("train.py", 15, "main"),), link="cause")
    job = Job(2).complains([1])
    if wrapped:
        job.raises(0, "DataError", "cannot encode", chain=(inner, remote))
    else:
        job.raises(0, "AttributeError", error, frames=inner.frames, chain=(remote,))
    found = cause_of(job)
    assert (found.code, found.ranks) == ("ERR001", RankSet([0]))
    assert (found.where[0].file, found.where[0].line) == line


def test_a_rank_that_logs_the_lost_peer_and_exits_is_a_victim() -> None:
    job = Job(2).raises(0, "KeyError", "'x'", 10.2)
    job.raises(1, "RuntimeError", CLOSED.format(4000), 10.0, kind="handled").set(1, exit_how="sys.exit")
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([0]), RankSet([1]))


def test_a_rank_that_logs_its_own_error_and_exits_has_that_error() -> None:
    job = Job(2).complains([1])
    job.raises(0, "OverflowError", "math range error", kind="handled")
    job.set(0, exit_how="sys.exit", exit_text="loss has left the range")
    found = cause_of(job)
    assert any("it then ended with: loss has left the range" in item.text for item in found.evidence)
    assert (found.code, found.ranks) == ("ERR001", RankSet([0]))
    assert "OverflowError: math range error" in found.message


@pytest.mark.parametrize("link", ["cause", "context"])
def test_a_victim_that_wraps_the_lost_peer_is_a_victim(link: str) -> None:
    peer = ExceptionRecord(0, "RuntimeError", CLOSED.format(4000), link=link)
    job = Job(2).raises(0, "TrainingFailed", "step 3", 10.0, chain=(peer,)).raises(1, "KeyError", "'x'", 10.3)
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0]))


def test_two_ranks_in_the_same_instant_are_both_told() -> None:
    other = (Frame("train.py", 99, "validate"),)
    job = Job(2).raises(0, "KeyError", "'x'", 10.0).raises(1, "ValueError", "y", 10.0, other)
    findings, _, _ = judge(job)
    assert [(each.ranks, each.role) for each in findings] == [
        (RankSet([0]), "cause"),
        (RankSet([1]), "consequence"),
    ]
    assert "before any other rank" not in findings[0].message


@pytest.mark.parametrize(("later", "said"), [(10, None), (11, None), (12, " 2 s "), (40, "30 s")])
def test_times_of_whole_seconds_are_not_compared_more_finely(later: int, said: str | None) -> None:
    job = Job(2).raises(0, "KeyError", "'x'").complains([1])
    for number, seconds in enumerate((10, later)):
        job.exceptions[number] = replace(
            job.exceptions[number], at=Moment(START_NS // 10**9 * 10**9 + seconds * 10**9)
        )
    found = cause_of(job)
    assert ("before any other rank" in found.message) == (said is not None)
    if said is not None:
        assert said in found.message
    assert not any("ms later" in item.text for item in found.evidence)


WIRE = (
    Frame("/usr/lib/python3.11/multiprocessing/connection.py", 395, "_recv"),
    Frame("train.py", 24, "main"),
)


@pytest.mark.parametrize(
    ("signal", "code"), [(9, "ERR005"), (11, "ERR004"), (None, "ERR001"), (15, "ERR001")]
)
def test_a_connection_that_a_dying_loader_worker_closed_is_the_workers_death(
    signal: int | None, code: str
) -> None:
    """Torch's own word on it comes with the next look at the workers, which may be too late."""
    job = Job(2).complains([1], 10.4)
    job.raises(0, "ConnectionResetError", "[Errno 104] Connection reset by peer", 10.0, WIRE)
    loader(job, 0, 77, signal)
    found = cause_of(job)
    assert (found.code, found.ranks) == (code, RankSet([0]))
    assert ("SIGKILL" in found.message) == (signal == 9)


STORE = "wait timeout after 6000ms, keys: /default_pg/0//cpu//0/0"


@pytest.mark.parametrize("started", [True, False])
def test_ranks_that_never_joined_are_named(started: bool) -> None:
    job = Job(4)
    for rank in range(4):
        begun = job.processes[rank].milestones[0]
        job.set(rank, milestones=(begun, replace(begun, name="init-begin")) if rank < 2 else (begun,))
    for rank in range(2):
        job.raises(rank, "torch.distributed.DistStoreError", STORE, 6.0)
    job.terminates([2], 6.5)
    if started:
        job.terminates([3], 6.5)
    else:
        del job.processes[3]
    found = cause_of(job)
    assert (found.code, found.ranks, found.victims) == ("NET006", RankSet([2, 3]), RankSet([0, 1]))
    idle = "ranks 2-3 never called" if started else "rank 3 never started and rank 2 never called"
    assert f"2 of 4 joined; {idle} init_process_group" in found.message


def unstarted(problem: ScriptProblem) -> Finding:
    evidence = make_unstarted(problem, Split((), (), (problem.file,)))
    findings, _, _ = judge(evidence)
    assert findings[0].ranks == RankSet()
    assert findings[0].message.endswith("Nothing was started.")
    assert findings[0].victims == RankSet()
    assert all(item.ranks is None for item in findings[0].evidence)
    return findings[0]


def test_a_script_that_was_never_started_is_no_ranks_failure() -> None:
    found = unstarted(
        ScriptProblem("FileNotFoundError", "there is no file jobs/trian.py in x/", "jobs/trian.py")
    )
    assert found.code == "ERR009"
    assert "The script jobs/trian.py cannot be opened: there is no file" in found.message
    assert found.fix[0].command == "ls jobs"
    found = unstarted(ScriptProblem("SyntaxError", "'(' was never closed", "train.py", 7))
    assert "does not parse: SyntaxError: '(' was never closed (train.py:7)." in found.message


def test_a_sentence_that_was_wrapped_over_lines_is_told_whole() -> None:
    text = """
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.

        This probably means that you are not using fork"""
    assert describe_exception("RuntimeError", text) == (
        "RuntimeError: An attempt has been made to start a new process before the current process has finished its "
        "bootstrapping phase."
    )
    assert describe_exception("E", "CUDA error: assert\nCompile with X") == "E: CUDA error: assert"
    listed = "Error(s) in loading state_dict for Net:\n\tsize mismatch for a.weight: [501, 64]\n\tsize mismatch for b"
    told = "Error(s) in loading state_dict for Net: size mismatch for a.weight: [501, 64]"
    assert describe_exception("RuntimeError", listed) == f"RuntimeError: {told}"


TAKEN = (
    "The server socket has failed to listen on any local network address. port: 29677, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)


@pytest.mark.parametrize(
    ("launcher", "wanted"), [("python", "getsockname"), ("torchrun", "--master-port 29678")]
)
def test_a_port_that_the_script_chooses_is_changed_in_the_script(launcher: str, wanted: str) -> None:
    job = Job(2, end={"launcher": launcher}).raises(0, "torch.distributed.DistNetworkError", TAKEN)
    first = cause_of(job).fix[0]
    assert wanted in f"{first.command} {first.code}"


@pytest.mark.parametrize(
    ("backend", "wanted"), [("gloo", "monitored_barrier"), ("nccl", "TORCH_FR_BUFFER_SIZE")]
)
def test_a_timeout_is_pursued_by_what_the_backend_has(backend: str, wanted: str) -> None:
    job = Job(2).complains([0], 10.0, TIMED_OUT).terminates([1])
    for rank in range(2):
        job.set(rank, backend=backend)
    found = cause_of(job)
    assert found.code == "COL005"
    assert wanted in f"{found.fix[0].command} {found.fix[0].code}"
    assert not any("under ddpdoctor" in fix.text for fix in found.fix)


def test_a_majority_that_built_the_same_model_is_not_blamed() -> None:
    job = Job(3)
    for rank in range(3):
        text = "DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."
        job.raises(rank, "RuntimeError", text.format(*((2, 5, 0, 4) if rank == 2 else (rank, 4, 2, 5))), 5.0)
    found = cause_of(job)
    assert (found.code, found.ranks, found.victims) == ("DDP009", RankSet([2]), RankSet([0, 1]))
    assert found.message.startswith("Rank 2 built a different model than the other ranks: ")
    assert "DDP() refused it on ranks 0-2 at train.py:71." in found.message


def joining(job: Job, **sizes: int) -> Job:
    """Ranks that are in init_process_group, each with the size of the world that it goes by."""
    for name, size in sizes.items():
        rank = int(name[1:])
        begun = job.processes[rank].milestones[0]
        job.set(rank, milestones=(begun, replace(begun, name="init-begin")), world_size=size)
    return job


def test_worlds_of_different_size_are_why_some_wait() -> None:
    job = joining(Job(3, launch={"world_size": 4}), r0=4, r1=3, r2=3)
    job.raises(0, "torch.distributed.DistStoreError", STORE, 6.0).terminates([1, 2], 6.5)
    found = cause_of(job)
    assert (found.code, found.ranks) == ("ENV003", RankSet([0]))
    assert "WORLD_SIZE is '3' on ranks 1-2 and '4' on rank 0" in found.message


def test_a_helper_of_a_rank_with_a_world_of_its_own_is_no_contradiction() -> None:
    job = joining(Job(3), r0=3, r1=3)
    job.set(2, milestones=job.processes[2].milestones[:1])
    job.extra.append(replace(job.process(0), pid=500, parent=1000, world_size=1))
    job.raises(0, "torch.distributed.DistStoreError", STORE, 6.0).terminates([1, 2], 6.5)
    assert cause_of(job).code == "NET006"


@pytest.mark.parametrize(
    ("frames", "starved"),
    [
        ((Frame("train.py", 50, "next_batch"),), True),
        ((Frame("/usr/lib/python3.11/threading.py", 331, "wait"), Frame("train.py", 50, "x")), True),
        (
            (Frame("/usr/lib/python3.11/socket.py", 851, "create_connection"), Frame("train.py", 50, "x")),
            False,
        ),
    ],
)
def test_a_time_out_is_a_threads_fault_where_the_main_thread_waited_for_it(
    frames: tuple[Frame, ...], starved: bool
) -> None:
    job = in_thread(Job(2), 1, 6.0).raises(1, "TimeoutError", "no batch", 10.0, frames).complains([0])
    assert (cause_of(job).where[0].file == "loader.py") == starved


@pytest.mark.parametrize("way", ["raises", "exits"])
@pytest.mark.parametrize("when", [9.9, 10.4])
def test_what_a_handler_of_sigterm_does_is_a_victims(way: str, when: float) -> None:
    """The culprit's own death has no time (nobody saw it), so the order alone would not tell."""
    job = Job(2).raises(1, "KeyError", "'x'", 10.0)
    if way == "raises":
        job.raises(0, "Preempted", "checkpoint saved", when)
    else:
        job.exits(0, 5, when)
    told = Milestone("told-to-end", job.when(0, 9.8), "agent (pid 5)")
    job.set(0, milestones=(*job.processes[0].milestones, told))
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0]))


def test_what_a_rank_did_before_it_was_told_to_end_is_its_own() -> None:
    job = Job(2).complains([1], 10.2).raises(0, "KeyError", "'x'", 10.0)
    told = Milestone("told-to-end", job.when(0, 10.1), "agent (pid 5)")
    job.set(0, milestones=(*job.processes[0].milestones, told))
    assert cause_of(job).ranks == RankSet([0])


def test_a_thread_that_died_long_ago_does_not_hide_a_rank_that_is_gone() -> None:
    job = in_thread(Job(3), 0, 5.0).complains([0, 1], 15.0)
    job.set(2, exit_code=None, ended=None, clean_end=False)
    found = cause_of(job)
    assert (found.code, found.ranks, found.victims) == ("ERR005", RankSet([2]), RankSet([0, 1]))


def test_a_rank_that_is_missed_is_explained_by_its_thread() -> None:
    """Its main thread waits for the other for ever, until the agent ends it."""
    job = in_thread(Job(3), 2, 6.0).complains([0, 1], 12.0, TIMED_OUT).terminates([2], 12.5)
    found = cause_of(job)
    assert (found.code, found.ranks, found.victims) == ("ERR001", RankSet([2]), RankSet([0, 1]))
    assert found.where[0].file == "loader.py"


def test_a_rank_whose_thread_died_long_ago_and_that_exits_when_told_is_a_victim() -> None:
    job = in_thread(Job(2), 0, 5.0).raises(1, "KeyError", "'x'", 15.0).exits(0, 3, 15.4)
    told = Milestone("told-to-end", job.when(0, 15.1), "agent (pid 5)")
    job.set(0, milestones=(*job.processes[0].milestones, told))
    found = cause_of(job)
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0]))


def test_ranks_that_somebody_outside_ends_all_together_are_told_as_one() -> None:
    job = Job(2)
    for rank in range(2):
        job.dies(rank, 15, 10 + rank * 0.001, signal_sender=UNSEEN)
    found = cause_of(job)
    assert (found.code, found.ranks) == ("ERR005", RankSet([0, 1]))
    assert found.message.startswith(
        "Every rank was ended by signal 15 (SIGTERM), and no rank had failed before: sent by"
    )


@pytest.mark.parametrize("parent", [900, 901], ids=["its own ranks", "others"])
def test_who_started_the_ranks_and_exits_after_them_only_passes_on_that_they_failed(parent: int) -> None:
    job = Job(2).complains([0, 1], 10.0)
    for rank, process in job.processes.items():
        job.processes[rank] = replace(process, parent=parent)
    call = (Frame("start.py", 15, "<module>", "sys.exit(1)"),)
    job.extra.append(
        ProcessRecord(
            900, role="other", exit_code=1, exit_call=call, exit_how="sys.exit", ended=job.when(0, 12.0)
        )
    )
    findings, _, _ = judge(job)
    assert ("ERR006" in {finding.code for finding in findings}) is (parent == 901)


def test_more_processes_than_the_group_holds_are_counted_wrongly_and_none_is_missing() -> None:
    text = (
        "Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=2, worker_count={}, timeout=0:30:00)"
    )
    crowded = cause_of(all_raise(2, "RuntimeError", text.format(4)))
    assert (crowded.code, crowded.details["joined"]) == ("ENV003", "4")
    assert "4 processes joined a group of 2" in crowded.message
    assert cause_of(all_raise(2, "RuntimeError", text.format(1))).code == "NET006"


def test_a_store_that_was_reached_in_the_end_is_no_cause() -> None:
    job = Job(2).says_example(1, "store-unroutable").complains([0, 1], message=TIMED_OUT)
    assert cause_of(job.says_example(0, "nccl-timed-out")).code == "COL005"
