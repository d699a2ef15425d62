"""What a rank writes down of files: what it writes over, reads as a checkpoint, renames and deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.injecting import line_of, python

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}


def test_uses_of_files_and_their_lines(tmp_path: Path) -> None:
    script = """
    import os, pickle, shutil, zipfile
    os.mkdir("out")
    with open("out/new.pkl", "wb") as file:  # new
        pickle.dump([1], file)
    open("out/log.txt", "a").close()
    open("out/old.txt").close() if os.path.exists("out/old.txt") else None
    with open("out/new.pkl", "rb") as file:
        pickle.load(file)
    os.replace("out/new.pkl", "out/last.pkl")
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("b", "c")
    shutil.rmtree("out")
    import tempfile
    tempfile.TemporaryFile(dir=".").close()
    tempfile.NamedTemporaryFile(dir=".").close()
    """
    events = python(tmp_path, script, variables=RANK).main().all("file")
    folder = str(tmp_path.resolve())
    told = [(event["op"], event["path"].replace(folder, "."), event["via"]) for event in events]
    assert told == [
        ("make", "./out", None),
        ("write", "./out/new.pkl", None),
        ("read", "./out/new.pkl", None),
        ("replace", "./out/last.pkl", None),
        ("write", "./a.zip", "zipfile"),
        ("remove", "./out", None),
    ]
    assert events[1]["frames"][0][1] == line_of(tmp_path / "train.py", "# new")
    assert all(event["near"] and not event["locked"] for event in events)


def test_what_must_be_new_and_what_is_deleted_alone(tmp_path: Path) -> None:
    script = """
    import os
    from pathlib import Path
    os.makedirs("out/run")
    os.makedirs("out/run", exist_ok=True)
    Path("out/a.txt").touch()
    os.symlink("a.txt", "out/link")
    os.remove("out/link")
    open("out/only.txt", "x").close()
    os.link("out/only.txt", "out/second.txt")
    Path("out/a.txt").unlink()  # gone
    try:
        os.unlink("out/a.txt")
    except FileNotFoundError:
        pass
    os.rmdir("out/run")
    """
    events = python(tmp_path, script, variables=RANK).main().all("file")
    folder = str(tmp_path.resolve())
    assert [(event["op"], event["path"].replace(folder, ".")) for event in events] == [
        ("make", "./out"),
        ("make", "./out/run"),
        ("make", "./out/link"),
        ("make", "./out/only.txt"),
        ("make", "./out/second.txt"),
        ("delete", "./out/a.txt"),
        ("delete", "./out/run"),
    ]
    assert events[5]["frames"][0][1] == line_of(tmp_path / "train.py", "# gone")


def test_what_torch_saves_is_seen_and_its_errors_are_as_they_were(tmp_path: Path) -> None:
    script = """
    import traceback
    import torch
    torch.save({"a": torch.zeros(3)}, "a.pt")
    try:
        torch.save({}, "nowhere/a.pt")
    except RuntimeError:
        assert "ddpdoctor" not in traceback.format_exc()
    """
    done = python(tmp_path, script, variables=RANK)
    assert done.returncode == 0, done.stderr
    process = done.main()
    written = [event for event in process.all("file") if event["path"].endswith(".pt")]
    assert [event["via"] for event in written] == ["torch.save", "torch.save"]
    ends = process.all("files")[0]["ends"]
    assert [(Path(path).name, size > 0) for path, size, *_ in ends if path.endswith(".pt")] == [
        ("a.pt", True)
    ]


def test_sources_that_torch_builds_are_no_files_of_the_users(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    script = """
    from torch.utils.cpp_extension import _maybe_write
    _maybe_write("main.cpp", "int one() { return 1; }")
    open("own.cpp", "w").close()
    """
    events = python(tmp_path, script, variables=RANK).main().all("file")
    assert [(Path(event["path"]).name, event["near"]) for event in events] == [
        ("main.cpp", False),
        ("own.cpp", True),
    ]


def test_locks_of_files_are_noted(tmp_path: Path) -> None:
    script = """
    import fcntl
    with open("x", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        open("a.pkl", "wb").close()
        fcntl.flock(lock, fcntl.LOCK_UN)
    open("b.pkl", "wb").close()
    """
    events = python(tmp_path, script, variables=RANK).main().all("file")
    assert [event["locked"] for event in events] == [True, False]


def test_a_child_of_a_rank_writes_nothing_down(tmp_path: Path) -> None:
    script = """
    import os
    if os.fork() == 0:
        open("a.pkl", "wb").close()
        os._exit(0)
    os.wait()
    """
    done = python(tmp_path, script, variables=RANK)
    assert done.every("file") == []


def test_a_process_that_is_no_rank_writes_nothing_down(tmp_path: Path) -> None:
    done = python(tmp_path, "open('b.pkl', 'wb').close()")
    assert done.every("end")
    assert done.every("file") == []


def test_an_archive_of_thousands_is_written_down_in_part(tmp_path: Path) -> None:
    script = """
    import zipfile
    with zipfile.ZipFile("a.zip", "w") as archive:
        for n in range(300):
            archive.writestr(f"d/{n}.txt", "c")
    zipfile.ZipFile("a.zip").extractall("out")
    """
    events = python(tmp_path, script, variables=RANK).main().all("file")
    assert 10 < len(events) < 60
