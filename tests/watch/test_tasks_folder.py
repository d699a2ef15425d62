"""The folder in which tasks meet: whose place is whose, who lives, and who gives the verdict."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ddpdoctor.watch.tasks.folder import Folder, Seen, UnsafeFolder, open_job
from ddpdoctor.watch.tasks.identity import Task
from ddpdoctor.watch.tasks.verdict import Bench

JOB = "slurm-7.0"


def task(number: int, count: int = 3, *, lasting: bool = True) -> Task:
    return Task(JOB, number, count, "srun", lasting=lasting)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Folder]]:
    """Three tasks of this process, which therefore all live."""
    made = [open_job(tmp_path, task(number)) for number in range(3)]
    for each in made:
        each.start()
    yield made
    for each in made:
        each.close()


def end(folder: Folder) -> None:
    (folder.path / folder.slot / "end.json").write_text("{}")


def lose(folder: Folder) -> None:
    """Make a task look as if its process were gone: another one has its number since."""
    folder.about = dataclasses.replace(folder.about, ticks=folder.about.ticks - 1)
    folder.introduce()


def states(seen: Sequence[Seen] | None) -> list[str] | None:
    return None if seen is None else [each.state for each in seen]


def test_tasks_of_one_job_share_a_folder_that_others_cannot_read(opened: list[Folder]) -> None:
    (path,) = {each.path for each in opened}
    assert path.name == JOB
    assert sorted(each.name for each in path.iterdir()) == ["task-0", "task-1", "task-2"]
    assert {os.stat(each).st_mode & 0o777 for each in (path, *path.iterdir())} == {0o700}
    assert states(opened[0].look()) == ["alive"] * 3


def test_second_run_of_a_script_meets_in_the_next_folder(tmp_path: Path) -> None:
    """`ddpdoctor run a; ddpdoctor run b` in one step: who is late with a finds its own place there free."""
    first = [open_job(tmp_path, task(number)) for number in (0, 1)]
    again = open_job(tmp_path, task(0))
    late = open_job(tmp_path, task(2))
    then = [open_job(tmp_path, task(number)) for number in (1, 2)]
    assert {each.path.name for each in (*first, late)} == {JOB}
    assert {each.path.name for each in (again, *then)} == {f"{JOB}-2"}


@pytest.mark.parametrize("lasting", [True, False])
def test_name_that_comes_back_does_not_lead_into_an_earlier_job(tmp_path: Path, lasting: bool) -> None:
    """mpirun's names may come back after months, on a smaller job's folder in which this task's place is free."""
    earlier = open_job(tmp_path, task(0, lasting=lasting))
    Bench(earlier).leave()
    assert (open_job(tmp_path, task(1, lasting=lasting)).path == earlier.path) == lasting


def test_folder_into_which_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir()
    (tmp_path / JOB).chmod(0o777)
    with pytest.raises(UnsafeFolder, match="other users may write"):
        open_job(tmp_path, task(0))
    assert list((tmp_path / JOB).iterdir()) == []


def test_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / JOB).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=JOB):
        open_job(tmp_path, task(0))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir(mode=0o700)
    os.chown(tmp_path / JOB, 65534, 65534)
    with pytest.raises(UnsafeFolder, match="another user"):
        open_job(tmp_path, task(0))


def test_tasks_are_seen_as_they_are(opened: list[Folder], tmp_path: Path) -> None:
    lose(opened[1])
    end(opened[2])
    assert states(opened[0].look()) == ["alive", "gone", "ended"]
    alone = open_job(tmp_path / "other", task(1))
    alone.introduce()
    assert states(alone.look()) == ["absent", "alive", "absent"]


def test_task_on_another_host_lives_while_it_gives_signs_of_life(
    opened: list[Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened[1].close()
    opened[1].about = dataclasses.replace(opened[1].about, place="elsewhere", host="node-b")
    opened[1].introduce()
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert opened[0].look()[1].state == "alive"
    now[0] += 9.0
    assert opened[0].look()[1].state == "alive"
    now[0] += 2.0
    assert opened[0].look()[1].state == "gone"
    os.utime(opened[1].path / "task-1/alive", (1, 1))
    assert opened[0].look()[1].state == "alive"


def test_process_that_has_ended_is_gone(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from ddpdoctor.watch.tasks.folder import open_job\n"
        "from ddpdoctor.watch.tasks.identity import Task\n"
        f"folder = open_job(Path(sys.argv[1]), Task({JOB!r}, 1, 3, 'srun', lasting=True)); folder.start()\n"
        "print(flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline()
    own = open_job(tmp_path, task(0))
    assert own.look()[1].state == "alive"
    other.kill()
    other.wait()
    assert own.look()[1].state == "gone"
    other.stdin.close()
    other.stdout.close()


def test_task_whose_job_did_not_begin_leaves_nothing(tmp_path: Path) -> None:
    made = [open_job(tmp_path / "ddpdoctor-runs", task(number)) for number in (0, 1)]
    for each in made:
        each.introduce()
        each.remove()
    assert list(tmp_path.iterdir()) == []


def test_who_ends_well_leaves_while_others_live(opened: list[Folder]) -> None:
    assert Bench(opened[0]).come(failed=False) is None
    assert not opened[0].has("judge")


def test_last_one_that_ends_judges(opened: list[Folder]) -> None:
    for each in opened:
        end(each)
    assert states(Bench(opened[1]).come(failed=False)) == ["ended"] * 3
    assert opened[0].taken_by("judge") == 1


def test_who_fails_first_judges_when_its_time_is_up(opened: list[Folder]) -> None:
    end(opened[2])
    assert states(Bench(opened[2], 0.0).come(failed=True)) == ["alive", "alive", "ended"]
    assert opened[0].taken_by("judge") == 2


def test_who_judges_waits_for_those_that_are_about_to_end(opened: list[Folder]) -> None:
    end(opened[2])
    found: list[Sequence[Seen] | None] = []
    judge = threading.Thread(target=lambda: found.append(Bench(opened[2], 60.0).come(failed=True)))
    judge.start()
    for each in opened[:2]:
        end(each)
    judge.join(60.0)
    assert states(found[0]) == ["ended"] * 3


def test_nobody_waits_for_a_task_that_is_gone_and_judging_waits_for_one_that_never_came(
    opened: list[Folder],
) -> None:
    lose(opened[0])
    lose(opened[1])
    end(opened[2])
    assert states(Bench(opened[2], 600.0).come(failed=True)) == ["gone", "gone", "ended"]


def test_host_that_falls_silent_is_waited_for_until_it_counts_as_lost(
    opened: list[Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a host and its being slow look alike for the first seconds, and mean another verdict."""
    opened[1].close()
    opened[1].about = dataclasses.replace(opened[1].about, place="elsewhere", host="node-b")
    opened[1].introduce()
    end(opened[0])
    end(opened[2])
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 0.1))
    assert states(Bench(opened[0], 3.0).come(failed=True)) == ["ended", "gone", "ended"]
    assert 109.0 < now[0] < 114.0


def test_slow_host_is_not_waited_for_any_longer(
    opened: list[Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened[1].close()
    opened[1].about = dataclasses.replace(opened[1].about, place="elsewhere", host="node-b")
    opened[1].introduce()
    end(opened[2])
    now = [100.0]

    def pass_time(seconds: float) -> None:
        now[0] += 0.1
        os.utime(opened[1].path / "task-1/alive", (now[0] // 2, now[0] // 2))

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", pass_time)
    assert states(Bench(opened[2], 3.0).come(failed=True)) == ["alive", "alive", "ended"]
    assert now[0] < 104.0


def test_others_that_failed_stay_until_the_verdict_was_given(opened: list[Folder]) -> None:
    """Where a task fails, mpirun ends all others a second later: the one that judges would be among them."""
    for each in opened:
        end(each)
    judge, other = Bench(opened[0], 60.0), Bench(opened[1], 60.0)
    assert judge.come(failed=True) is not None
    left = threading.Thread(target=other.come, kwargs={"failed": True})
    left.start()
    left.join(0.5)
    assert left.is_alive()
    judge.leave()
    left.join(60.0)
    assert not left.is_alive()


def test_another_one_judges_where_the_one_that_did_was_killed(opened: list[Folder]) -> None:
    for each in opened:
        end(each)
    assert Bench(opened[0]).come(failed=True) is not None
    lose(opened[0])
    assert states(Bench(opened[1], 600.0).come(failed=True)) == ["ended"] * 3
    assert opened[2].taken_by("judge") == 1


def test_nobody_judges_twice(opened: list[Folder]) -> None:
    for each in opened:
        end(each)
    first = Bench(opened[0])
    assert first.come(failed=False) is not None
    first.leave()
    assert Bench(opened[1], 600.0).come(failed=True) is None


def test_first_task_that_lives_leads(opened: list[Folder]) -> None:
    assert [each.leads() for each in opened] == [True, False, False]
    end(opened[0])
    assert [each.leads() for each in opened] == [True, True, False]
