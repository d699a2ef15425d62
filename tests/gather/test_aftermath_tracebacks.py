"""Tracebacks in logs: chained, cut, between others' lines, quoted by others."""

from __future__ import annotations

from ddpdoctor.aftermath.lines import split_line
from ddpdoctor.aftermath.tracebacks import Told, TracebackReader

SIMPLE = """Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    main()
  File "/job/train.py", line 5, in main
    raise ValueError("bad")
ValueError: bad"""
CHAINED = f"""{SIMPLE}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    load()
RuntimeError: no data
second line"""


def read(text: str) -> tuple[list[Told], TracebackReader]:
    reader = TracebackReader()
    for number, raw in enumerate(text.encode().split(b"\n"), 1):
        for line in split_line(raw, number):
            reader.feed(line)
    return reader.finish(), reader


def prefixed(text: str, prefix: str) -> list[str]:
    return [prefix + line for line in text.splitlines()]


def test_a_traceback_gives_type_message_frames_and_source() -> None:
    told, _ = read(f"before\n{SIMPLE}\n")
    part = told[0].parts[0]
    assert (part.type, part.message[0], part.number) == ("ValueError", "bad", 2)
    assert [(f.file, f.line, f.function, f.source) for f in part.frames] == [
        ("/job/train.py", 9, "<module>", "main()"),
        ("/job/train.py", 5, "main", 'raise ValueError("bad")'),
    ]


def test_a_chain_keeps_its_links_and_order() -> None:
    told, _ = read(CHAINED)
    assert [(part.type, part.link) for part in told[0].parts] == [
        ("ValueError", "cause"),
        ("RuntimeError", None),
    ]
    assert told[0].parts[1].message == ["no data", "second line"]


def test_chain_with_prefix_whose_empty_lines_have_none() -> None:
    text = "\n".join(line if line.strip() != "[rank1]:" else "" for line in prefixed(CHAINED, "[rank1]: "))
    told, _ = read(text)
    assert [part.type for part in told[0].parts] == ["ValueError", "RuntimeError"]
    assert (told[0].line.rank, told[0].line.hooked) == (1, True)


def test_ranks_that_write_between_each_others_lines_are_kept_apart() -> None:
    other = SIMPLE.replace("ValueError", "KeyError").replace("/job/train.py", "/job/data.py")
    pairs = zip(prefixed(SIMPLE, "[rank0]: "), prefixed(other, "[rank1]: "), strict=True)
    told, _ = read("\n".join(line for pair in pairs for line in pair))
    assert {t.line.rank: (t.parts[0].type, t.parts[0].frames[0].file) for t in told} == {
        0: ("ValueError", "/job/train.py"),
        1: ("KeyError", "/job/data.py"),
    }


def test_equal_tracebacks_without_prefix_that_are_mixed_are_both_read_and_marked() -> None:
    lines = [line for line in SIMPLE.splitlines() for _ in range(2)]
    told, _ = read("\n".join(lines))
    assert [(t.parts[0].type, len(t.parts[0].frames), t.interleaved) for t in told] == [
        ("ValueError", 2, True)
    ] * 2


def test_output_of_others_inside_a_traceback_is_not_taken_for_its_exception() -> None:
    lines = SIMPLE.splitlines()
    lines.insert(3, "epoch: 3")
    lines.insert(5, "rank 0 started")
    told, _ = read("\n".join(lines))
    assert [(t.parts[0].type, len(t.parts[0].frames)) for t in told] == [("ValueError", 2)]


def test_what_follows_a_message_is_not_part_of_it() -> None:
    told, _ = read(
        f"{SIMPLE}\nW1121 01:30:06.057000 16843 torch/distributed/elastic/x.py:1028] Sending process\n"
    )
    assert told[0].parts[0].message == ["bad"]


def test_a_loader_workers_traceback_stays_in_the_message() -> None:
    text = f"""Traceback (most recent call last):
  File "/job/train.py", line 33, in main
    for x in loader:
ValueError: Caught ValueError in DataLoader worker process 1.
Original {SIMPLE}

Traceback (most recent call last):
  File "/job/other.py", line 1, in <module>
KeyError: 'x'"""
    told, _ = read(text)
    assert [t.parts[0].type for t in told] == ["ValueError", "KeyError"]
    assert 'File "/job/train.py", line 5, in main' in "\n".join(told[0].parts[0].message)
    assert told[0].parts[0].message[-1] == "ValueError: bad"


def test_processes_of_spawn_are_told_by_their_number() -> None:
    text = f"""Traceback (most recent call last):
  File "/job/train.py", line 40, in <module>
    mp.spawn(work, nprocs=2)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
{SIMPLE}
"""
    told, _ = read(text)
    assert [(t.parts[-1].type.rpartition(".")[2], t.index) for t in told] == [("ProcessRaisedException", 1)]
    assert told[0].parts[-1].message[-1] == "ValueError: bad"


def test_a_traceback_glued_to_other_output_begins_where_it_begins() -> None:
    first, rest = SIMPLE.split("\n", 1)
    told, _ = read(f"rank 1 started[rank1]: {first}\n" + "\n".join(prefixed(rest, "[rank1]: ")))
    assert [(t.line.rank, t.parts[0].type) for t in told] == [(1, "ValueError")]
    told, _ = read(f" 10%|#         |\r 20%|##        |{SIMPLE}")
    assert [t.parts[0].type for t in told] == ["ValueError"]


def test_colours_do_not_hide_a_traceback() -> None:
    told, _ = read("\n".join(f"\x1b[31m{line}\x1b[0m" for line in SIMPLE.splitlines()))
    assert [(t.parts[0].type, t.parts[0].message) for t in told] == [("ValueError", ["bad"])]


def test_a_syntax_error_has_no_header() -> None:
    told, _ = read('  File "/job/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n')
    assert [(t.parts[0].type, t.parts[0].frames[0].line) for t in told] == [("SyntaxError", 3)]


def test_exceptions_that_python_ignores_are_left_out() -> None:
    told, _ = read(f"Exception ignored in: <function A.__del__ at 0x7f>\n{SIMPLE}\n")
    assert told == []


def test_a_threads_exception_says_so() -> None:
    told, _ = read(f"Exception in thread Thread-1 (pump):\n{SIMPLE}\n")
    assert told[0].thread == "Thread-1 (pump)"


def test_a_cut_traceback_is_counted_and_gives_nothing() -> None:
    told, reader = read("\n".join(SIMPLE.splitlines()[:4]))
    assert (told, reader.unfinished) == ([], 1)


def test_endless_hostile_input_ends_and_keeps_little() -> None:
    told, reader = read("Traceback (most recent call last):\n" * 5000)
    assert (told, reader.busy) == ([], False)
    frames = '  File "a.py", line 1, in f\n' * 20000
    told, _ = read(f"Traceback (most recent call last):\n{frames}ValueError: x")
    assert len(told[0].parts[0].frames) <= 1000


def test_a_rank_that_says_nothing_more_is_not_waited_for_to_the_end_of_the_log() -> None:
    reader = TracebackReader()
    for number, raw in enumerate(["[rank1]: " + line for line in SIMPLE.splitlines()] + ["step"] * 5000, 1):
        for line in split_line(raw.encode(), number):
            reader.feed(line)
    assert not reader.busy
    assert [told.parts[0].type for told in reader.finish()] == ["ValueError"]
