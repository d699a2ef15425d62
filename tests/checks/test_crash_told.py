"""What findings on a job's end tell beside their code: words, lines, commands, restarts; and logs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.collectives import RING, CallTable, RankCalls, RecordedCall
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    JobEnd,
    MemoryRecord,
    ProcessRecord,
    WrappedParameter,
)
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor.testing import assert_status
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.job.blame.conditions import MOST_WRITTEN
from ddpdoctor_checks.job.ends import find_cause
from tests.checks.crashed import all_raise, everyone_raises, one_raises, restarts_of, said, segfault, unused
from tests.checks.jobs import LOOP, TIMED_OUT, Job, at, cause_of, join_attempts, judge


def test_sigkill_without_proof_says_what_was_not_looked_at() -> None:
    job = Job(2).dies(1, 9).complains([0])
    job.memory.append(MemoryRecord(0, "node-a", oom_kills=0, kernel_note="the kernel log needs root"))
    found = cause_of(job)
    assert (found.code, found.confidence) == ("ERR005", "medium")
    assert "the kernel log needs root" in found.message


@pytest.mark.parametrize(("value", "known"), [("DETAIL", True), ("INFO", False)])
def test_crash_under_detailed_debugging_names_the_setting_first(value: str, known: bool) -> None:
    found = cause_of(segfault().set(1, variables={"TORCH_DISTRIBUTED_DEBUG": value}))
    assert (found.fix[0].command == "unset TORCH_DISTRIBUTED_DEBUG") == known


def test_crash_under_our_own_detailed_debugging_offers_the_lower_level() -> None:
    settings = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    job = segfault().set(1, variables=settings)
    job.end["toggles"] = settings
    assert "--debug info" in (cause_of(job).fix[0].command or "")


def test_a_comprehension_is_shown_as_the_function_that_it_stands_in() -> None:
    frames = (
        Frame("data.py", 20, "<listcomp>"), Frame("data.py", 20, "encode"), Frame("data.py", 31, "<genexpr>"),
        Frame("data.py", 30, "__getitem__"),
    )  # fmt: skip
    assert [frame.function for frame in user_frames(frames)] == ["encode", "<genexpr>", "__getitem__"]


def test_a_crash_of_one_rank_is_looked_for_with_all_of_them() -> None:
    some = cause_of(segfault()).fix[0].command or ""
    assert "--nproc 2" in some
    everyone = Job(2).dies(0, 11).dies(1, 11)
    for rank, process in everyone.processes.items():
        everyone.crashes.append(
            CrashRecord(process.pid, "Fatal Python error: Segmentation fault", LOOP, rank=rank)
        )
    assert "--nproc 1" in (cause_of(everyone).fix[0].command or "")


def test_exit_shows_what_the_rank_said_before_it() -> None:
    job = Job(2).exits(1, 4, last_words="loading\ndataset not found: /data/train\n\n").complains([0])
    found = cause_of(job)
    assert "last line on stderr: dataset not found: /data/train" in [item.text for item in found.evidence]


def test_several_ranks_that_exit_alike_are_spoken_of_as_several() -> None:
    found = cause_of(Job(2).exits(0, 3).exits(1, 3))
    assert "they called sys.exit with status 3" in found.message


def test_exit_with_a_text_of_its_own_needs_no_other() -> None:
    job = Job(2).exits(1, 1, exit_text="no data", last_words="no data").complains([0])
    assert not any("last line on stderr" in item.text for item in cause_of(job).evidence)


@pytest.mark.parametrize(("backend", "wraps", "offered"), [
    ("gloo", True, False), ("gloo", False, True), ("nccl", True, True), ("cpu:gloo,cuda:nccl", True, False),
])  # fmt: skip
def test_detailed_debugging_is_not_offered_where_it_would_crash(
    backend: str, wraps: bool, offered: bool
) -> None:
    job = one_raises(*said("mismatch-of-sizes"), world=3)
    for rank, process in job.processes.items():
        job.set(rank, backend=backend, milestones=process.milestones if wraps else ())
    found = cause_of(job)
    assert found.code == "COL003"
    assert any("--debug detail" in (fix.command or "") for fix in found.fix) == offered
    assert found.fix


def test_checks_of_crashes_say_that_we_ended_the_job() -> None:
    job = Job(2, exit_code=None).terminates([0, 1])
    job.end = {"stopped": True, "interrupted": "SIGTERM"}
    rows = judge(job)[2]
    assert "ddpdoctor ended the hung job" in (rows["crash.cause"].reason or "")


def test_two_processes_of_one_rank_are_named() -> None:
    job = Job(1, launch={"world_size": 2, "nproc": 2})
    twin = job.process(0, pid=9999, ended=at(60), exit_code=1)
    job.extra.append(twin)
    job.raises(0, *said("clients-missing"), seconds=60)
    job.exceptions.append(ExceptionRecord(9999, *said("clients-missing"), LOOP, rank=0, at=at(60)))
    found = cause_of(job)
    assert found.code == "ENV002"
    assert "node-a:1000 and node-a:9999" in found.message
    assert found.ranks == RankSet([0])


def test_child_of_a_rank_and_an_earlier_attempt_are_no_second_rank() -> None:
    job = Job(2).raises(0, "KeyError", "'x'").complains([1])
    job.extra += [job.process(0, pid=2000, parent=1000), job.process(1, pid=3000, attempt=7, exit_code=0)]
    assert "ENV002" not in [each.code for each in judge(job)[0]]


@pytest.mark.parametrize("given", [("--max-restarts", "2"), ("--max_restarts=2",)])
def test_restart_loop_is_mended_by_an_option_that_counts(given: tuple[str, ...]) -> None:
    """Of an option that is there twice the last counts: what the job was started with would win."""
    command = ("/venv/bin/torchrun", "--nproc-per-node", "2", *given, "train.py")
    agent = ProcessRecord(7, role="launcher", command=command, exit_code=1)
    evidence = restarts_of(3)
    (job,) = (found for found in judge(replace(evidence, processes=(*evidence.processes, agent)))[0][1:])
    assert job.fix[0].command == "ddpdoctor run --max-restarts 0 --nproc-per-node 2 train.py"


def test_restart_loop_is_told_beside_its_cause() -> None:
    findings, _, _ = judge(restarts_of(3))
    assert [each.code for each in findings] == ["ERR001", "ENV018"]
    assert findings[1].details["attempts"] == [0, 1, 2]
    assert "3 attempts of 3" in findings[1].message
    assert any("the same failure in 3 attempts" in item.text for item in findings[0].evidence)


def test_attempts_that_failed_otherwise_are_told_apart() -> None:
    """Of several restarts the last failure is the verdict; what failed first in the others stands beside it."""
    attempts = [
        Job(2).raises(1, "ValueError", "bad batch", 1.0),
        Job(2, attempt=1).raises(0, "OSError", "no space left", 40.0),
        Job(2, attempt=2).raises(0, "OSError", "no space left", 80.0),
    ]
    told = [item for item in cause_of(join_attempts(*attempts)).evidence if item.kind == "restart"]
    assert [item.text for item in told] == [
        "the same failure in 2 attempts",
        "another failure in attempt 0: ValueError: bad batch at train.py:71",
    ]
    assert told[1].ranks == RankSet([1])


def test_attempts_that_failed_differently_are_no_loop() -> None:
    first = Job(2, attempt=0).raises(0, "KeyError", "'x'").complains([1])
    second = Job(2, attempt=1).raises(1, "ValueError", "odd").complains([0])
    findings, _, _ = judge(join_attempts(first, second))
    assert [(each.code, str(each.ranks)) for each in findings] == [("ERR001", "1")]


def test_restart_that_helped_leaves_a_warning() -> None:
    first = Job(2, attempt=0).raises(0, "KeyError", "'x'").complains([1])
    findings, verdict, _ = judge(join_attempts(first, Job(2, attempt=1, exit_code=0)))
    assert [(each.code, each.severity) for each in findings] == [("ERR001", "warning")]
    assert verdict.status == "problems"


def test_errno_97_is_a_note_and_only_in_a_job_that_failed() -> None:
    job = one_raises("KeyError", "'x'").says_example(0, "address-family", count=40)
    findings, verdict, _ = judge(job)
    assert [(each.code, each.severity) for each in findings] == [("ERR001", "error"), ("NET012", "info")]
    assert "40 lines" in findings[1].message
    assert verdict.code == "ERR001"


@pytest.mark.parametrize(
    ("device", "visible", "severity"), [("0", None, "warning"), ("1", None, "info"), ("0", "3", "info")]
)
def test_guessed_device_is_a_warning_where_the_guess_is_wrong(
    device: str, visible: str | None, severity: str
) -> None:
    line = find_entry("device-guessed").example.replace("GPU 6", f"GPU {device}")
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    findings, _, _ = judge(Job(2, exit_code=0).set(1, variables=variables).says(1, line))
    assert [(each.code, each.severity) for each in findings] == [("BKD009", severity)]


def test_blocking_launches_make_the_line_the_true_one() -> None:
    job = one_raises(*said("device-error"), world=2).set(1, variables={"CUDA_LAUNCH_BLOCKING": "1"})
    job.says_example(1, "device-assertion")
    found = cause_of(job)
    assert "this is the line" in found.message
    assert any("srcIndex < srcSelectDimSize" in item.text for item in found.evidence)
    assert not any("--blocking" in (fix.command or "") for fix in found.fix)


def test_names_of_parameters_come_from_the_message_where_no_wrapper_was_seen() -> None:
    text = find_entry("parameters-unused").example + "\n" + find_entry("unused-names").example
    found = cause_of(all_raise(2, "RuntimeError", text.removeprefix("RuntimeError: ")))
    assert found.code == "DDP001"
    assert "b.weight and b.bias" in found.message


def test_indices_are_told_where_no_name_is_known() -> None:
    job = unused(range(2), world=2)
    job.wrappers.clear()
    assert "parameter 2 and parameter 3" in cause_of(job).message


@pytest.mark.parametrize(("written", "code"), [(MOST_WRITTEN, "DDP006"), (MOST_WRITTEN - 1, "DDP001")])
def test_more_parameters_were_frozen_than_are_written_down(written: int, code: str) -> None:
    job = unused(range(2), world=2)
    indices = " ".join(map(str, range(300)))
    job.exceptions[:] = [
        replace(each, message=each.message.replace(": 2 3", f": {indices}")) for each in job.exceptions
    ]
    rows = tuple(WrappedParameter(n, f"stem.{n}.weight", requires_grad=False) for n in range(written))
    job.wrappers[:] = [replace(each, parameters=rows) for each in job.wrappers]
    found = cause_of(job)
    assert found.code == code
    assert "300 parameters" in found.message


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_only_statement_that_freezes_is_named(count: int) -> None:
    job = unused(range(2), world=2)
    rows = tuple(WrappedParameter(n, f"stem.{n}.weight", requires_grad=False) for n in (2, 3))
    freezes = tuple(Frame("models.py", 40 + n, "", "part.requires_grad_(False)") for n in range(count))
    job.wrappers[:] = [replace(each, parameters=rows, freezes=freezes) for each in job.wrappers]
    found = cause_of(job)
    roles = [(place.file, place.line, place.role) for place in found.where]
    if count == 1:
        assert roles[0] == ("models.py", 40, "culprit")
        assert roles[1][2] == "noticed"
    else:
        assert roles[0][2] == "culprit"
        assert roles[0][0] != "models.py"


def test_sets_of_unused_parameters_that_differ_are_told_per_rank() -> None:
    job = unused(range(2), world=2)
    other = replace(job.exceptions[1], message=job.exceptions[1].message.replace(": 2 3", ": 3"))
    job.exceptions[1] = other
    found = cause_of(job)
    assert found.code == "DDP002"
    assert [row["names"] for row in found.details["by_rank"]] == [["b.weight", "b.bias"], ["b.bias"]]


@pytest.mark.parametrize(
    ("launcher", "start"),
    [("torchrun", "ddpdoctor run --nproc 2 "), ("srun", "ddpdoctor run "), ("accelerate", "ddpdoctor run ")],
)
def test_commands_are_for_the_launcher_of_the_job(launcher: str, start: str) -> None:
    job = everyone_raises("device-error")
    job.end["launcher"] = launcher
    if launcher != "torchrun":
        job.extra.append(
            ProcessRecord(7, role="launcher", command=(launcher, "launch", "train.py"), exit_code=1)
        )
    commands = [fix.command for fix in cause_of(job).fix if fix.command]
    assert commands[0].startswith(start)
    if launcher != "torchrun":
        assert f"-- {launcher} launch train.py" in commands[0]
    else:
        assert commands[0] == "ddpdoctor run --nproc 2 --blocking train.py --lr 0.1"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("port-taken", "ddpdoctor run --master-port 29501 --nproc-per-node=2 --tee 3 train.py --lr 0.1"),
        (
            "device-error",
            "ddpdoctor run --blocking --nproc-per-node=2 --master_port 29500 --tee 3 train.py --lr 0.1",
        ),
        ("driver-failed", "ddpdoctor run --nproc 1 --master_port 29500 --tee 3 train.py --lr 0.1"),
    ],
)
def test_commands_repeat_what_torchrun_was_given(entry: str, expected: str) -> None:
    job = everyone_raises(entry) if entry != "driver-failed" else all_raise(2, "ValueError", "odd")
    given = "python -m torch.distributed.run --nproc-per-node=2 --master_port 29500 --tee 3 train.py --lr 0.1".split()
    job.extra.append(ProcessRecord(7, role="launcher", command=tuple(given), exit_code=1))
    commands = [fix.command for fix in cause_of(job).fix if fix.command]
    assert commands[0] == expected


def test_log_without_processes_is_judged_from_its_tracebacks() -> None:
    """What ``analyze`` finds in saved output of plain torchrun: no process, no end, ranks perhaps by prefix."""
    evidence = Evidence(
        launch=Launch(command="analyze", world_size=2),
        exceptions=(
            ExceptionRecord(0, "KeyError", "'x'", LOOP, rank=1, kind="log", source=("run.log", 12)),
            ExceptionRecord(
                0, "RuntimeError", find_entry("gloo-peer-gone").example, LOOP, rank=0, kind="log"
            ),
        ),
    )
    found = cause_of(evidence)
    assert (found.code, str(found.ranks), str(found.victims)) == ("ERR001", "1", "0")
    assert found.evidence[0].source == ("run.log", 12)


@pytest.mark.parametrize(("begin", "script"), [("<module>", "tools/fit.py"), ("worker", "train.py")])
def test_log_without_processes_names_the_script_in_which_tracebacks_begin(begin: str, script: str) -> None:
    frames = (Frame("tools/steps.py", 12, "step"), Frame("tools/fit.py", 14, begin))
    peer = find_entry("gloo-peer-gone").example
    lost = ExceptionRecord(0, "RuntimeError", peer, frames, rank=0, kind="log")
    exits = ProcessRecord(0, rank=1, exit_code=4, watched=False, unwatched_reason="read from a log")
    evidence = Evidence(
        launch=Launch(command="analyze", world_size=2), exceptions=(lost,), processes=(exits,)
    )
    found = cause_of(evidence)
    assert found.code == "ERR006"
    assert (found.fix[0].command or "").endswith(f" {script}")
    assert "does not show where" in found.fix[0].text


def test_an_error_raised_from_a_lost_peer_in_other_words_stays_a_complaint() -> None:
    job = Job(2).raises(1, "KeyError", "'x'", 10)
    inner = ExceptionRecord(1000, "RuntimeError", find_entry("gloo-peer-gone").example, rank=0, link="cause")
    job.raises(0, "TrainerError", "epoch 3 failed", 9.9, chain=(inner,))
    assert str(cause_of(job).ranks) == "1"


def test_log_without_ranks_is_judged_too() -> None:
    evidence = Evidence(
        launch=Launch(command="analyze", world_size=2),
        exceptions=(
            ExceptionRecord(0, "RuntimeError", find_entry("gloo-peer-gone").example, LOOP, kind="log"),
            ExceptionRecord(0, "KeyError", "'x'", LOOP, kind="log"),
        ),
    )
    assert cause_of(evidence).message.startswith("A process of the job failed")


def test_job_in_which_only_victims_spoke_is_not_judged() -> None:
    findings, verdict, rows = judge(Job(4).complains(range(4)))
    assert findings == []
    row = rows["crash.cause"]
    assert row.status == "unknown"
    assert "only affected ranks were seen" in (row.reason or "")
    assert (verdict.status, verdict.code) == ("problems", None)
    assert "only affected ranks were seen" in verdict.headline


def test_job_that_left_nothing_is_not_judged() -> None:
    evidence = Evidence(launch=Launch(command="run"), job=(JobEnd(1),))
    reason = assert_status(find_cause, evidence, "unknown")
    assert "cannot determine the first failure" in reason


def test_interrupted_job_is_nobodys_fault() -> None:
    job = Job(2)
    job.end["interrupted"] = "SIGINT"
    for rank in range(2):
        job.raises(rank, "KeyboardInterrupt", "", 5)
    findings, verdict, rows = judge(job)
    assert findings == []
    assert {row.status for row in rows.values()} == {"skipped"}
    assert verdict.status == "unknown"


def test_failure_before_the_interruption_is_told() -> None:
    job = Job(2).raises(1, "KeyError", "'x'", 3).raises(0, "KeyboardInterrupt", "", 60)
    job.end["interrupted"] = "SIGINT"
    found = cause_of(job)
    assert (found.code, str(found.ranks)) == ("ERR001", "1")


def test_failure_after_which_a_restart_went_well_is_told_as_such() -> None:
    first = Job(2, exit_code=0).raises(1, "KeyError", "'x'")
    found = cause_of(join_attempts(first, Job(2, exit_code=0, attempt=1)))
    assert (found.code, found.severity) == ("ERR001", "warning")
    assert found.message.endswith("restarted the job, which then succeeded.")


def test_console_script_of_a_launcher_is_nobodys_line() -> None:
    script = Frame("/venv/bin/torchrun", 8, "<module>", "sys.exit(main())")
    own = Frame("/home/someone/bin/train", 3, "<module>")
    assert user_frames((script, own)) == (own,)


def test_a_rank_that_gets_the_wrong_size_need_not_be_the_odd_one() -> None:
    found = cause_of(Job(3).dies(1, 6).says_example(1, "mismatch-of-sizes").complains([0, 2]))
    assert (found.code, found.confidence) == ("COL003", "medium")
    assert "the rank that detects it need not be the one that differs" in found.message
    assert not found.victims  # the larger tensor may be any rank's
    two = cause_of(Job(2).dies(1, 6).says_example(1, "mismatch-of-sizes").complains([0]))
    assert "the rank that detects it" not in two.message
    assert (two.ranks, two.victims) == (RankSet([0, 1]), RankSet())


@pytest.mark.parametrize("aborted", [[1], [0, 1]])
def test_last_words_on_the_launchers_stream_are_those_of_the_rank_that_aborted(aborted: list[int]) -> None:
    job = Job(3)
    for rank in aborted:
        job.dies(rank, 6)
    job.extra.append(ProcessRecord(50, role="launcher", script="spawn.py"))
    job.says_example(None, "mismatch-of-sizes", pid=50, stream="stderr").complains([2])
    found = cause_of(job)
    # Of two that aborted, one text may be either's.
    assert found.code == ("COL003" if len(aborted) == 1 else "ERR005")


@pytest.mark.parametrize("below", [True, False])
def test_a_launcher_above_the_ranks_hands_their_status_on(below: bool) -> None:
    job = Job(2).complains([0])
    call = (Frame("start.py", 8, "<module>", "sys.exit(main())"),)
    job.extra.append(
        ProcessRecord(
            60, role="other", exit_code=1, exit_how="sys.exit", exit_call=call, ended=job.when(0, 60.0)
        )
    )
    for rank in (0, 1):
        job.set(rank, parent=60 if below else 1)
    findings, _, _ = judge(job)
    assert any(each.code == "ERR006" for each in findings) is not below


def with_calls(made: Evidence, *sizes: int) -> Evidence:
    """Let each rank have written down a last all_reduce of so many values."""
    table = CallTable()
    group = table.group("0", "default_pg", RankSet.span(len(sizes)))
    stack = table.stack([Frame("train.py", 71, "step", "dist.all_reduce(x)")])
    rows = [
        RankCalls(
            rank, source=RING, sequences=Numbers([4]), states=Numbers([3]),
            calls=Numbers([table.call(RecordedCall("all_reduce", group, ((size,),), stack=stack, reduction="sum"))]),
        )
        for rank, size in enumerate(sizes)
    ]  # fmt: skip
    return replace(made, calls=(table.log(rows),))


@pytest.mark.parametrize(
    ("sizes", "ranks", "victims"),
    [
        ((8, 64, 8), RankSet([1]), RankSet([0, 2])),
        ((8, 8, 64), RankSet([2]), RankSet([0, 1])),
        ((8, 64), RankSet([0, 1]), RankSet()),
        ((8, 64, 9), RankSet([0, 1, 2]), RankSet()),
    ],
    ids=["one larger", "the one that fails first is right", "of two", "no two alike"],
)
def test_what_ranks_wrote_down_names_the_one_that_differs(
    sizes: tuple[int, ...], ranks: RankSet, victims: RankSet
) -> None:
    """Whichever rank fails first, and whatever it says."""
    last = len(sizes) - 1
    job = Job(len(sizes)).dies(last, 6).says_example(last, "mismatch-of-sizes").complains(range(last))
    found = cause_of(with_calls(job.evidence(), *sizes))
    assert (found.code, found.ranks, found.victims) == ("COL003", ranks, victims)
    assert f"all_reduce(sum) of [{max(sizes)}] at train.py:71" in found.message
    assert ("the evidence does not show which side is wrong" in found.message) is not bool(victims)


def test_ranks_that_waited_till_a_limit_are_not_cleared_by_it() -> None:
    job = Job(3)
    for rank in (0, 1):
        job.raises(rank, "RuntimeError", TIMED_OUT, 10 + rank)
    found = cause_of(job)
    assert (found.code, found.victims) == ("COL005", RankSet())
