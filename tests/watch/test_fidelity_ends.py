"""Ends, restarts, workers and logs of a job: the same under ``run`` as under torchrun."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.marks import long
from tests.watch.injecting import write
from tests.watch.launching import Ended, pair, torchrun_pair

ENDS = {
    "sys.exit": "sys.exit(5)",
    "sys.exit text": "sys.exit('no data')",
    "os._exit": "os._exit(7)",
    "raise": "raise ValueError('wrong')",
    "signal": "os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "os.abort()",
    "term": "os.kill(os.getpid(), signal.SIGTERM)",
    "well": "pass",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_command_ends_with_its_own_code(tmp_path: Path, end: str) -> None:
    write(tmp_path, f"import os, signal, sys\nprint('begun', flush=True)\n{ENDS[end]}\n")
    plain, watched = pair(tmp_path, [sys.executable, "train.py"], ["--", sys.executable, "train.py"])
    assert watched.code == plain.code
    assert watched.stdout == plain.stdout == b"begun\n"
    if end != "abort":  # Python's fault handler writes into the evidence instead
        shown = plain.stderr.splitlines()
        assert watched.stderr.splitlines()[: len(shown)] == shown


RESTARTING = """
    import os, sys, time
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    said = attempt + " of " + os.environ["TORCHELASTIC_MAX_RESTARTS"] + chr(10)
    with open(os.path.join(os.environ["OUT"], "attempts-" + rank), "a") as file:
        file.write(said)

    def has_written(other):
        path = os.path.join(os.environ["OUT"], "attempts-" + other)
        return os.path.exists(path) and said in open(path).read()

    if sys.argv[1] == "never" or int(attempt) < 1:
        # The agent ends rank 0 as soon as it sees rank 1 gone, on a busy machine before rank 0 has begun.
        while rank == "1" and not has_written("0"):
            time.sleep(0.05)
        if rank == "1":
            os._exit(9)
        time.sleep(100)
"""


def say(ended: Ended) -> list[str]:
    """What torchrun itself said of a failure, without what differs each time."""
    text = ended.stderr.decode()
    lines = re.findall(r"^ +(?:exitcode|rank|traceback) +: .*$", text, re.M)
    return [re.sub(r"(?i)pid:? \d+", "", line).strip() for line in lines]


@pytest.mark.parametrize(("until", "code"), [("never", 1), pytest.param("second", 0, marks=pytest.mark.long)])
def test_restarts_are_torchruns(tmp_path: Path, until: str, code: int) -> None:
    write(tmp_path, RESTARTING)
    plain, watched = torchrun_pair(
        tmp_path, "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1", "train.py", until
    )
    assert (plain.code, watched.code) == (code, code)
    for rank in (0, 1):
        seen = (tmp_path / "watched" / f"attempts-{rank}").read_text()
        assert seen == (tmp_path / "plain" / f"attempts-{rank}").read_text() == "0 of 1\n1 of 1\n"
    assert say(watched) == say(plain)


RECORDED = """
    import os
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError("wrong on " + os.environ["RANK"])

    if __name__ == "__main__":
        main()
"""


def test_a_script_with_record_is_reported_the_same(tmp_path: Path) -> None:
    write(tmp_path, RECORDED)
    plain, watched = torchrun_pair(tmp_path, "train.py")
    assert watched.code == plain.code == 1
    assert say(watched) == say(plain)
    assert b"ValueError: wrong on 0" in watched.stderr
    summary = watched.stderr.partition(b"Root Cause")[2]
    assert b"error_file: <N/A>" not in summary


LOADERS = """
    import json, os
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index * index

    class Worker:
        def __call__(self, number):
            assert type(self) is Worker
            print("worker", number, flush=True)

    if __name__ == "__main__":
        found = {}
        for method in ("fork", "spawn", "forkserver"):
            loader = DataLoader(
                Squares(), batch_size=2, num_workers=1, multiprocessing_context=method, worker_init_fn=Worker()
            )
            found[method] = [batch.tolist() for batch in loader]
        print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.long
def test_loaders_start_their_workers_as_ever(tmp_path: Path) -> None:
    write(tmp_path, LOADERS)
    plain, watched = torchrun_pair(tmp_path, "train.py")
    assert (plain.code, watched.code) == (0, 0), watched.stderr.decode()
    assert watched.stdout == plain.stdout
    assert json.loads(watched.stdout.splitlines()[-1])["spawn"] == [[0, 1], [4, 9]]


CHATTY = """
    import os, sys
    print("out of", os.environ["RANK"], os.isatty(1))
    print("err of", os.environ["RANK"], os.fstat(1).st_mode & 0o170000, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "options",
    [["--tee", "3"], *long(["--redirects", "3"], ["-r", "1"], ["--tee=1", "--local-ranks-filter", "0"])],
    ids=" ".join,
)
def test_where_torchrun_sends_output_it_goes(tmp_path: Path, options: list[str]) -> None:
    write(tmp_path, CHATTY)
    given = ["--nproc-per-node=2", *options]
    folder = tmp_path / "watched"
    plain, watched = pair(
        tmp_path,
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *given, f"--log-dir={tmp_path / 'a'}", "train.py"],
        ["--standalone", *given, f"--log-dir={tmp_path / 'b'}", "train.py"],
    )  # fmt: skip
    assert (plain.code, watched.code) == (0, 0)
    assert sorted(watched.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    logs = [
        {
            str(path.relative_to(top)).partition("/")[2]: path.read_bytes()
            for path in sorted(top.rglob("*.log"))
        }
        for top in (tmp_path / "a", tmp_path / "b")
    ]
    assert logs[0]
    assert logs[1] == logs[0]
    assert (folder / "run" / "report.json").exists()
