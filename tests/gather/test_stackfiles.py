"""Stacks in files, as py-spy and faulthandler wrote them of a gloo job of three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.aftermath import Sources
from ddpdoctor.aftermath.stackfiles import looks_like_stacks, read_stacks

RECORDED = Path(__file__).parent / "stacks"


@pytest.mark.parametrize(("folder", "name"), [("spy", "rank{}.txt"), ("fault", "fault_rank{}.txt")])
def test_the_main_thread_is_read_with_its_rank(folder: str, name: str) -> None:
    found = [read_stacks(RECORDED / folder / name.format(rank), "x")[0] for rank in range(3)]
    assert [stack.rank for stack in found] == [0, 1, 2]
    assert found[1].frames[0].function == "read_shard"
    assert found[1].frames[0].file.endswith("hang.py")
    assert found[0].frames[0].function == "all_reduce"
    assert "torch/distributed/distributed_c10d.py" in found[0].frames[0].file


def test_of_several_dumps_of_a_process_the_last_two_are_kept() -> None:
    stack = read_stacks(RECORDED / "fault" / "fault_rank0.txt", "x")[0]
    assert stack.frames == stack.before


def test_py_spy_names_the_main_thread_wherever_it_stands(tmp_path: Path) -> None:
    threads = ('Thread 1 (idle): "Thread-1"', "    wait (threading.py:331)", 'Thread 2 (active): "MainThread"', "    f (a.py:3)",
               'Thread 3 (idle): "x"', "    wait (threading.py:331)")  # fmt: skip
    (tmp_path / "rank7.txt").write_text(
        "\n".join(["Process 5: python a.py", "Python v3.11.7 (python)", "", *threads])
    )
    stack = read_stacks(tmp_path / "rank7.txt", "x")[0]
    assert (stack.rank, stack.pid, [(frame.file, frame.line) for frame in stack.frames]) == (
        7,
        5,
        [("a.py", 3)],
    )


def test_files_of_libraries_are_told_from_the_users(tmp_path: Path) -> None:
    lines = ["    wait (threading.py:331)", "    send (torch/distributed/x.py:2)", "    f (queues/my.py:3)"]
    text = ["Process 5: python a.py", "", "Thread 2 (idle)", *lines]
    (tmp_path / "rank0.txt").write_text("\n".join(text))
    frames = read_stacks(tmp_path / "rank0.txt", "x")[0].frames
    assert [(frame.file, frame.whose) for frame in frames] == [
        ("threading.py", "python"),
        ("torch/distributed/x.py", "torch"),
        ("queues/my.py", "user"),
    ]


def test_a_file_of_several_processes_tells_no_rank(tmp_path: Path) -> None:
    one = 'Process {}: python a.py\nPython v3.11\n\nThread 1 (idle): "MainThread"\n    f (a.py:3)\n'
    (tmp_path / "rank0.txt").write_text(one.format(5) + one.format(6))
    assert [(stack.pid, stack.rank) for stack in read_stacks(tmp_path / "rank0.txt", "x")] == [
        (5, None),
        (6, None),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Timeout (0:00:30)!\nThread 0x00007f (most recent call first):\n", True),
        ("\nCurrent thread 0x00007f (most recent call first):\n", True),
        ("Process 12: python\nPython v3.11.7 (x)\n", True),
        ("Fatal Python error: Aborted\n\nThread 0x00007f (most recent call first):\n", False),
        ("step 3\nThread 0x00007f (most recent call first):\n", False),
        ("Process 12: done\n", False),
        ("", False),
    ],
)
def test_what_begins_like_stacks_is_stacks(text: str, kind: bool) -> None:
    assert looks_like_stacks(text.encode()) is kind


def test_a_folder_of_stacks_is_sorted_as_such() -> None:
    sources = Sources()
    sources.add(RECORDED / "spy", named=True)
    assert {source.kind for source in sources.found} == {"stacks"}


def test_native_frames_are_no_files_of_the_user(tmp_path: Path) -> None:
    frames = [
        "    pause (libc.so.6)",
        "    Decoder::decode(int) (libfoo.so)",
        "    0x7f3a6f7c3f7a (libffi.so.8.1.2)",
        "    _call_function_pointer (callproc.c:943)",
        "    decode (codec.py:5)",
        "    <module> (train.py:13)",
        "    0x7fce03e4524a (libc.so.6)",
    ]
    text = ["Process 5: python a.py", "", 'Thread 2 (idle): "MainThread"', *frames]
    (tmp_path / "rank0.txt").write_text("\n".join(text))
    stack = read_stacks(tmp_path / "rank0.txt", "x")[0]
    assert [frame.file for frame in stack.frames] == ["codec.py", "train.py"]
    assert [(frame.function, frame.library) for frame in stack.native] == [
        ("pause", "libc.so.6"),
        ("Decoder::decode", "libfoo.so"),
        ("?", "libffi.so.8.1.2"),
        ("_call_function_pointer", "callproc.c"),
    ]
