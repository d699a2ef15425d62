"""Files over which ranks race, and the many ways in which several ranks may use one path and be right."""

from __future__ import annotations

import dataclasses

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.training.fingerprints import FileUse, SharedFile, Training
from tests.checks import jobs
from tests.checks.jobs import LOOP, Job
from tests.checks.training import judge, only

SAVE = Frame("train.py", 40, "save", "torch.save(state, path)")
LOAD = Frame("train.py", 50, "load", "state = torch.load(path)")
PHASE = (3, 2, 40)
SECOND = 1_000_000_000


def use(rank: int, operation: str = "write", seconds: float = 0.0, phase: tuple[int, ...] = PHASE, *,
        size: int | None = None, locked: bool = False, via: str | None = "torch.save", near: bool = True,
        line: Frame = SAVE) -> FileUse:  # fmt: skip
    """Return what a rank did so many seconds after the first."""
    at = Moment(1_000 * SECOND + int(seconds * SECOND), int(seconds * SECOND))
    return FileUse(rank, operation, at, phase, size, locked, via, near, (line,))


def files(*shared: SharedFile) -> Evidence:
    return Evidence(training=(Training(ranks=RankSet.span(2), files=shared),))


def shared(
    *uses: FileUse, path: str = "out/last.pt", size: int | None = 4096, written: float | None = None
) -> Evidence:
    ended = None if written is None else 1_000 * SECOND + int(written * SECOND)
    return files(SharedFile(path, uses, size, ended))


def test_a_checkpoint_that_two_ranks_write_is_an_error_at_the_users_line() -> None:
    found = only(shared(use(0), use(1, seconds=0.002)))
    assert (found.code, found.severity, found.ranks) == ("CKP001", "error", RankSet([0, 1]))
    assert (found.where[0].line, found.where[0].ranks) == (40, RankSet([0, 1]))
    assert "out/last.pt" in found.message
    assert "2.0 ms" in found.message


@pytest.mark.parametrize(
    ("path", "severity"),
    [("out/state.dat", "warning"), ("out/model.npy", "error"), ("out/args.json", "info")],
)
def test_how_bad_it_is_follows_from_what_the_file_is(path: str, severity: str) -> None:
    found = only(shared(use(0, via=None), use(1, via=None), path=path))
    assert (found.code, found.severity) == ("CKP001", severity)
    assert found.role == ("advice" if severity == "info" else "cause")


def test_what_torch_saves_is_a_checkpoint_whatever_its_name() -> None:
    assert only(shared(use(0), use(1), path="out/state.dat")).severity == "error"


def test_files_of_one_line_are_one_finding() -> None:
    found = only(files(*(SharedFile(f"out/{n}.pt", (use(0), use(1)), 10) for n in range(5))))
    assert "out/0.pt and 4 more files" in found.message
    assert found.details["count"] == 5


@pytest.mark.parametrize(
    "uses",
    [
        (use(0), use(1, phase=(4, 2, 40))),  # a barrier between
        (use(0), use(1, phase=(3, 2, 41))),  # a step between
        (use(0, locked=True), use(1, locked=True)),
        (use(0), use(0, seconds=1)),
        (use(0, "replace", size=10), use(1, "replace", size=10)),
        (use(0), use(1, "read", phase=(4, 2, 40))),
        (use(0, "read"), use(1, seconds=1)),  # the state of the run before is read, then written over
        (use(0, phase=()), use(1, phase=())),
        (use(0, "remove", size=0), use(1, "remove", size=0)),
    ],
)
def test_what_is_in_order_or_loses_nothing_is_no_finding(uses: tuple[FileUse, ...]) -> None:
    assert judge(shared(*uses)) == []


def test_flags_locks_and_what_a_library_keeps_are_left_alone() -> None:
    assert judge(shared(use(0, via=None), use(1, via=None), path="out/done", size=0)) == []
    assert judge(shared(use(0, via=None), use(1, via=None), path="cache/x.lock")) == []
    assert (
        judge(shared(use(0, via=None, near=False), use(1, via=None, near=False), path="cache/refs/main"))
        == []
    )


def test_renaming_files_of_other_sizes_to_one_name_loses_all_but_one() -> None:
    found = only(shared(use(0, "replace", size=10), use(1, "replace", 0.1, size=12)))
    assert (found.code, found.severity) == ("CKP001", "error")
    assert "10 and 12 bytes" in found.message


def test_a_rank_that_reads_what_is_still_being_written() -> None:
    found = only(shared(use(0), use(1, "read", 0.5, line=LOAD), written=0.9))
    assert (found.code, found.severity, found.ranks) == ("CKP002", "error", RankSet([1]))
    assert found.where[0].line == LOAD.line
    assert "while it was still being written" in found.message


def test_a_rank_that_reads_with_nothing_to_wait_for_is_a_warning() -> None:
    found = only(shared(use(0), use(1, "read", 0.5, line=LOAD), written=0.1))
    assert (found.code, found.severity) == ("CKP002", "warning")


def test_a_directory_that_two_ranks_delete() -> None:
    found = only(shared(use(0, "remove", size=1), use(1, "remove", 0.01, size=0), path="out", size=None))
    assert (found.code, found.severity, found.ranks) == ("CKP005", "warning", RankSet([0, 1]))


def test_a_directory_that_one_rank_deletes_while_another_writes_into_it() -> None:
    folder = SharedFile("out", (use(0, "remove", size=1),))
    found = only(files(folder, SharedFile("out/a.pt", (use(1),), 10)))
    assert (found.code, found.ranks) == ("CKP005", RankSet([0, 1]))
    apart = SharedFile("out/a.pt", (use(1, phase=(4, 2, 40)),), 10)
    assert judge(files(folder, apart)) == []


def test_what_is_fetched_or_unpacked_by_all_is_named_as_such() -> None:
    found = only(
        shared(use(0, via="zipfile", near=False), use(1, via="zipfile", near=False), path="data/0.png")
    )
    assert (found.code, found.severity) == ("DAT008", "warning")
    assert only(shared(use(0, via=None), use(1, via=None), path="data.zip")).code == "DAT008"


def test_what_a_rank_does_with_files_of_its_own_is_no_race() -> None:
    assert judge(shared(use(0), use(0, "read", 0.5, line=LOAD), written=0.9)) == []
    folder = SharedFile("out", (use(0, "remove", size=1),))
    assert judge(files(folder, SharedFile("out/a.pt", (use(0, seconds=1),), 10))) == []
    locked = SharedFile("out", (use(0, "remove", size=1, locked=True),))
    assert judge(files(locked, SharedFile("out/a.pt", (use(1),), 10))) == []


def test_a_race_in_a_job_that_failed_of_something_else_is_an_advice() -> None:
    job = Job(2).raises(0, "KeyError", "'x'").evidence()
    raced = dataclasses.replace(job, training=shared(use(0), use(1)).training)
    assert [(found.code, found.role) for found in judge(raced) if found.code == "CKP001"] == [
        ("CKP001", "advice")
    ]


GONE = "[Errno 2] No such file or directory: 'out/a.pt'"
LOADING = Frame("/venv/lib/python3.11/site-packages/torch/serialization.py", 1500, "load")
CLEAN = Frame("prep.py", 24, "cleanup", "shutil.rmtree(path)")


def lost(*shared: SharedFile) -> tuple[str, RankSet, str]:
    """Return what is said of a rank 1 that did not find a file: code, root-cause ranks, message."""
    job = Job(2).raises(1, "FileNotFoundError", GONE, frames=(LOADING, *LOOP)).evidence()
    first = jobs.judge(dataclasses.replace(job, training=files(*shared).training))[0][0]
    return first.code, first.ranks, first.message


def test_a_file_that_was_there_until_another_rank_deleted_its_directory() -> None:
    folder = SharedFile("out", (use(0, "remove", 5.0, size=1, line=CLEAN),))
    code, ranks, message = lost(
        folder, SharedFile("out/a.pt", (use(0), use(1, "read", 1.0), use(1, "read", 5.1)))
    )
    assert (code, ranks) == ("CKP005", RankSet([0]))
    assert "Rank 0 deleted the directory of out/a.pt at prep.py:24 while rank 1 still read it" in message


def test_a_file_that_was_not_written_yet() -> None:
    cleared = SharedFile("out", (use(0, "remove", 0.0, size=1, line=CLEAN),))
    later = SharedFile("out/a.pt", (use(1, "read", 1.0), use(0, "write", 2.0)))
    own = SharedFile("out", (use(1, "remove", 0.5, size=1, line=CLEAN),))
    for shared in ([later], [cleared, later], [own, SharedFile("out/a.pt", (use(0), use(1, "read", 1.0)))]):
        code, ranks, message = lost(*shared)
        assert (code, ranks) == ("CKP002", RankSet([1]))
        assert "missing or unfinished" in message


RENAMED = "[Errno 2] No such file or directory: 'out/part.tmp' -> 'out/part_0.pt'"
RENAME = Frame("snapshot.py", 37, "write", "os.replace(tmp, final)")


def unrenamed(*shared: SharedFile, text: str = RENAMED) -> tuple[str, RankSet, str]:
    """Return what is said of a rank 1 that could not rename a file: code, root-cause ranks, message."""
    job = Job(2).raises(1, "FileNotFoundError", text, frames=(RENAME, *LOOP)).evidence()
    first = jobs.judge(dataclasses.replace(job, training=files(*shared).training))[0][0]
    return first.code, first.ranks, first.message


def test_a_temporary_file_that_all_ranks_write_and_rename_is_gone_for_the_last_one() -> None:
    code, ranks, message = unrenamed(SharedFile("out/part.tmp", (use(0), use(1, seconds=0.5))))
    assert (code, ranks) == ("CKP001", RankSet([0, 1]))
    assert message.startswith("Ranks 0-1 all write out/part.tmp")
    assert "the slower rank no longer finds it" in message


def test_a_renaming_that_fails_of_something_else() -> None:
    apart = SharedFile("out/part.tmp", (use(0), use(1, seconds=0.5, phase=(4, 2, 40))))
    locked = SharedFile("out/part.tmp", (use(0, locked=True), use(1, seconds=0.5)))
    for shared in ([], [apart], [locked], [SharedFile("out/part.tmp", (use(1),))]):
        assert unrenamed(*shared)[0] == "ERR001"
    both = SharedFile("out/part.tmp", (use(0), use(1, seconds=0.5)))
    assert unrenamed(both, text="[Errno 2] No such file or directory: 'out/part.tmp'")[0] == "ERR001"


def failing(type: str, text: str, *shared: SharedFile, rank: int = 1, watched: bool = True, line: Frame = CLEAN,
            inner: tuple[Frame, ...] = ()) -> tuple[str, RankSet, str, str]:  # fmt: skip
    """Return what is said of one rank of three that failed with a file: code, root-cause ranks, confidence, message."""
    job = Job(3).raises(rank, type, text, frames=(*inner, line, *LOOP)).evidence()
    seen = files(*shared).training if watched else ()
    launch = job.launch if watched else dataclasses.replace(job.launch, command="analyze")
    first = jobs.judge(dataclasses.replace(job, training=seen, launch=launch))[0][0]
    return first.code, first.ranks, first.confidence, first.message


EXISTS = ("FileExistsError", "[Errno 17] File exists: 'out/run'")
MAKE = Frame("train.py", 12, "prepare", "os.makedirs(path)")


def test_a_directory_that_another_rank_made_is_a_race_and_one_of_an_earlier_run_is_none() -> None:
    made = SharedFile("out/run", (use(0, "make", line=MAKE),))
    code, ranks, sure, message = failing(*EXISTS, made, line=MAKE)
    assert (code, ranks, sure) == ("CKP005", RankSet([1]), "high")
    assert "rank 0 had already made out/run at train.py:12" in message
    own = SharedFile("out/run", (use(1, "make", line=MAKE),))
    other = SharedFile("out/other", (use(0, "make", line=MAKE),))
    for shared in ([], [own], [other]):
        assert failing(*EXISTS, *shared, line=MAKE)[0] == "ERR001"


def test_a_link_that_another_rank_made_is_that_of_the_error() -> None:
    linked = ("FileExistsError", "[Errno 17] File exists: 'out/m0.pt' -> 'out/latest.pt'")
    line = Frame("train.py", 12, "link", "os.symlink(path, latest)")
    code, _, _, message = failing(
        *linked, SharedFile("out/latest.pt", (use(0, "make", line=line),)), line=line
    )
    assert (code, "rank 0 had already made out/latest.pt at train.py:12" in message) == ("CKP005", True)
    assert failing(*linked, SharedFile("out/m0.pt", (use(0, "make", line=line),)), line=line)[0] == "ERR001"


def test_what_logs_alone_tell_of_a_directory_is_said_with_less_confidence() -> None:
    assert failing(*EXISTS, watched=False, line=MAKE)[:3] == ("CKP005", RankSet([1]), "medium")
    assert failing(*EXISTS, watched=False, line=MAKE, rank=0)[0] == "ERR001"


def test_a_file_that_another_rank_deleted_first() -> None:
    gone = ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/out/cache.bin'")
    deleted = SharedFile("out/cache.bin", (use(0, "delete", line=CLEAN),))
    code, ranks, sure, message = failing(*gone, deleted)
    assert (code, ranks, sure) == ("CKP005", RankSet([1]), "high")
    assert "rank 0 had already deleted /data/out/cache.bin at prep.py:24" in message
    assert failing(*gone, SharedFile("out/cache.bin", (use(1, "delete"),)))[0] == "ERR001"
    assert failing(*gone, SharedFile("cache.bin.old", (use(0, "delete"),)))[0] == "ERR001"


def test_a_tree_that_another_rank_deletes_at_the_same_line() -> None:
    inner = (Frame("/usr/lib/python3.11/shutil.py", 700, "_rmtree_safe_fd"),)
    inside = ("FileNotFoundError", "[Errno 2] No such file or directory: 'a.txt'")
    tree = SharedFile("out", (use(0, "remove", size=1, line=CLEAN), use(1, "remove", size=1, line=CLEAN)))
    assert failing(*inside, tree, inner=inner)[:2] == ("CKP005", RankSet([1]))
    missing = SharedFile("out", (use(0, "remove", size=0, line=CLEAN),))
    assert failing(*inside, missing, inner=inner)[0] == "ERR001"


def test_a_checkpoint_that_no_rank_was_to_write_is_no_race() -> None:
    missing = ("FileNotFoundError", "[Errno 2] No such file or directory: 'weights/backbone.pt'")
    assert failing(*missing, rank=0, line=LOAD, inner=(LOADING,))[0] == "ERR001"
    written = SharedFile("weights/backbone.pt", (use(1), use(0, "read", 1.0)))
    code, ranks, sure, message = failing(*missing, written, rank=0, line=LOAD, inner=(LOADING,))
    assert (code, ranks, sure) == ("CKP002", RankSet([0]), "high")
    assert "nothing makes it wait for rank 1, which writes it at train.py:40" in message
    assert failing(*missing, line=LOAD, inner=(LOADING,))[:3] == ("CKP002", RankSet([1]), "medium")
    own = missing[1].replace("backbone", "part_1")
    assert failing(missing[0], own, line=LOAD, inner=(LOADING,))[0] == "ERR001"
    other = missing[1].replace("backbone", "part_10")
    assert failing(missing[0], other, line=LOAD, inner=(LOADING,))[0] == "CKP002"
    before = SharedFile("weights/backbone.pt", (use(1), use(0, "read", 1.0, (4, 2, 40))))  # a barrier between
    assert failing(*missing, before, rank=0, line=LOAD, inner=(LOADING,))[0] == "ERR001"


def test_a_checkpoint_that_no_rank_of_a_node_finds() -> None:
    missing = "[Errno 2] No such file or directory: 'weights/backbone.pt'"
    job = Job(3).raises(2, "FileNotFoundError", missing, frames=(LOADING, LOAD, *LOOP)).evidence()
    nodes = (Training(ranks=RankSet([0, 1])), Training(node=1, ranks=RankSet([2])))
    assert jobs.judge(dataclasses.replace(job, training=nodes))[0][0].code == "ERR001"
    seen = SharedFile("weights/backbone.pt", (use(0),))
    nodes = (Training(ranks=RankSet([0, 1]), files=(seen,)), Training(node=1, ranks=RankSet([2])))
    assert jobs.judge(dataclasses.replace(job, training=nodes))[0][0].code == "CKP002"


@pytest.mark.parametrize(("named", "times"), [("ckpt/last.pt", 1), ("ckpt/best.pt", 2)])
def test_what_the_error_says_of_a_file_is_not_said_twice(named: str, times: int) -> None:
    missing = f"[Errno 2] No such file or directory: '{named}'"
    job = Job(2).raises(1, "FileNotFoundError", missing, frames=(LOADING, LOAD, *LOOP)).evidence()
    raced = SharedFile("ckpt/last.pt", (use(0), use(1, "read", 0.5, line=LOAD)), 10)
    found = judge(dataclasses.replace(job, training=files(raced).training))
    assert [each.code for each in found] == ["CKP002"] * times
