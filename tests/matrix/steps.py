"""What is tried in each environment, by that environment's own interpreter.

``python -m tests.matrix.steps NAME FILE`` tries one of `STEPS` and writes what it showed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import junitparser

from tests.faults.reading import read_cases
from tests.faults.score import Score, score_trial
from tests.faults.trial import end_rest, fails_as_told, find_obstacle, try_case, try_plain
from tests.faults.truth import Truth, load_all
from tests.hosts.checking import Doctor, static
from tests.hosts.harness import Hosts, unavailable_reason
from tests.matrix.results import Shown
from tests.matrix.running import (
    DOCTOR,
    JOBS,
    TORCHRUN,
    Ended,
    ask_doctor,
    execute,
    find_warnings,
    finish,
    kill,
    make_folder,
    name_first,
    start,
    wait_for,
)

ROOT = Path(__file__).parents[2]
FAST = ("evidence", "facts", "gather", "judge", "report", "source", "text")
"""Directories whose tests, but for a few, start nothing, and which a version of Python or torch can break: not the
programs of `lint` and made-up evidence of the checks, which take longer and are the same everywhere."""
TESTS_S = 1500.0
LEFT_OUT = "not long and not slow and not chromium and not unmeasured"


COMPILED = (
    "torch._dynamo",  # comes with the first step of an optimizer
    "torch.distributed._functional_collectives",
    "torch.distributed.algorithms.join",
    "torch.distributed.optim",
    "torch.distributed.run",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
)
"""What most jobs import: compiled once here, since jobs of the cases write no bytecode."""


def show_facts() -> Shown:
    """What the environment is."""
    import torch  # only here: the other steps do without
    import torch.distributed as dist

    for name in COMPILED:
        importlib.import_module(name)
    nccl = dist.is_available() and dist.is_nccl_available()
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    text = f"{build}, NCCL {'built' if nccl else 'not built'}, {devices} GPUs"
    names = ("numpy", "psutil", "py-spy", "rich", "jinja2")
    versions = {name: importlib.metadata.version(name) for name in names}
    whole = {"torch": torch.__version__, "python": platform.python_version(), "build": build, **versions}
    return Shown("right", text, details=whole)


def show_check() -> Shown:
    """`ddpdoctor check` on four ranks of one host: healthy, and no check that cannot look on account of torch."""
    with make_folder() as folder:
        temporary = folder / "tmp"
        temporary.mkdir()
        ended = ask_doctor(folder, "check", "--nproc", "4", variables={"TMPDIR": str(temporary)})
        return judge_check(ended, sorted(path.name for path in temporary.rglob("*")))


def judge_check(ended: Ended, left: Sequence[str] = ()) -> Shown:
    """Return what a `check` of a healthy machine showed, and whether it left files behind."""
    report = ended.report
    if not report:
        return Shown("wrong", f"no report, exit {ended.code}", ended.tail())
    verdict = report["verdict"]
    loud = [each for each in report["findings"] if each["severity"] != "info"]
    notes = [f"{each['code']}: {each['message']}" for each in loud]
    failed = [row for row in report["checks"] if row["status"] == "error"]
    notes += [f"{row['id']} failed: {row['reason']}" for row in failed]
    unlike = [each for each in report["evidence"]["collectives"] if each["failures"]]
    notes += [f"{each['op']} of {each['dtype']}: {each['failures'][0]}" for each in unlike[:3]]
    if left:
        notes.append(f"left behind: {', '.join(left)}")
    right = ended.code == 0 and verdict["status"] == "healthy" and not notes
    if ended.code != 0:
        notes.append(f"exit {ended.code}")
    said = "healthy" if verdict["status"] == "healthy" else name_first(report)
    unknown = {row["id"]: row["reason"] for row in report["checks"] if row["status"] == "unknown"}
    skipped = {row["id"]: row["reason"] for row in report["checks"] if row["status"] == "skipped"}
    exact = sum(
        not each["failures"] and not each["unsupported"] for each in report["evidence"]["collectives"]
    )
    unsupported = {
        " ".join(filter(None, (each["op"], each["reduction"]))): each["unsupported"]
        for each in report["evidence"]["collectives"]
        if each["unsupported"]
    }
    details = {"unknown": unknown, "skipped": skipped, "unsupported": unsupported, "exact": exact}
    text = f"{said}, {verdict['looked']} of {verdict['of']}"
    return Shown("right" if right else "wrong", text, tuple(notes), details)


def show_hosts() -> Shown:
    """The same on two hosts with a rank each."""
    reason = unavailable_reason()
    if reason is not None:
        return Shown("absent", "not tried", (reason,))
    with make_folder() as folder, Hosts(2) as hosts:
        try:
            told = Doctor(folder).ask(hosts, static(hosts, "--stage-timeout", "bandwidth=60"))
        except AssertionError as error:
            return Shown("wrong", "not as expected", tuple(str(error).splitlines()[:20]))
        each = [one.result for one in told]
        merged = next((one.merged for one in told if one.merged), {})
        shown = [judge_check(Ended(one.returncode, one.stdout, one.stderr, merged)) for one in each]
    return next((one for one in shown if one.outcome != "right"), shown[0])


def choose_cases(truths: Sequence[Truth]) -> list[Truth]:
    """Return the sample: of every family the first case of every second code, and as many healthy ones as
    a family has. What needs more than an ordinary user is left to `make accuracy`.
    """
    first: dict[str, Truth] = {}
    for truth in truths:
        if truth.code and not truth.needs:
            first.setdefault(truth.code, truth)
    families: dict[str, list[Truth]] = {}
    for code, truth in first.items():
        families.setdefault(code.rstrip("0123456789"), []).append(truth)
    chosen = [truth for family in families.values() for truth in family[::2]]
    healthy = [truth for truth in truths if truth.is_healthy and not truth.needs]
    each = len(chosen) // max(1, len(families))
    return chosen + healthy[:: max(1, len(healthy) // max(1, each))][:each]


def show_cases() -> Shown:
    """Broken and healthy scripts under `ddpdoctor run`: the verdict that their truth wants.

    One after the other: before 2.5 all jobs of torchrun meet at port 29500.
    """
    able = [truth for truth in choose_cases(load_all()) if find_obstacle(truth) is None]
    scores = []
    other: dict[str, str] = {}
    for truth in able:
        score = score_trial(truth, try_case(truth, (*DOCTOR, "run")))
        if not score.is_right:
            plain = try_plain(truth)
            if not fails_as_told(truth, plain):
                other[truth.name] = f"exit {plain.exit_code}"
                continue
        scores.append(score)
    return judge_scores(scores, other)


def judge_scores(scores: Sequence[Score], other: Mapping[str, str]) -> Shown:
    """Return how many were right in everything.

    Args:
        scores: of the cases.
        other: how jobs ended that do not fail with this torch as their truth says, also without ddpdoctor.
    """
    wrong = [f"{score.name}: {'; '.join(score.notes) or score.got}" for score in scores if not score.is_right]
    left_out = [f"{name} is another job there: {end} without ddpdoctor" for name, end in other.items()]
    details = {score.name: score.got for score in scores}
    text = f"{len(scores) - len(wrong)} of {len(scores)}"
    return Shown("wrong" if wrong else "right", text, (*wrong, *left_out), details)


def show_attach() -> Shown:
    """`ddpdoctor attach` at a job of torchrun that hangs and was not prepared: names the rank that differs."""
    with make_folder() as folder:
        (folder / "job").mkdir()
        command = [*TORCHRUN, "--nproc-per-node", "3", str(JOBS / "hang.py")]
        job = start(command, folder / "job", {"OUT": str(folder)})
        try:
            ready = [folder / f"ready-{rank}" for rank in range(3)]
            wait_for(lambda: all(path.exists() for path in ready) or job.poll() is not None)
            if job.poll() is not None:
                return Shown("wrong", "no job", finish(job, folder / "job").tail())
            ended = ask_doctor(folder / "attach", "attach", str(job.pid))
            lives = job.poll() is None
        finally:
            end_rest(folder)  # torchrun gives each rank a session of its own
            kill(job)
    return judge_named(ended, ranks=[2], codes=("COL002", "COL003"), more=[] if lives else ["the job ended"])


def judge_named(ended: Ended, ranks: list[int], codes: tuple[str, ...], more: Iterable[str] = ()) -> Shown:
    """Return whether the first finding has one of the codes and names these ranks, with exit code 1."""
    said = name_first(ended.report)
    notes = list(more)
    if not ended.report:
        notes += ended.tail()
    elif said not in codes:
        notes.append(f"said {said}, expected {' or '.join(codes)}")
    elif ended.report["findings"][0]["ranks"] != ranks:
        notes.append(f"named ranks {ended.report['findings'][0]['ranks']}, expected {ranks}")
    if ended.code != 1:
        notes.append(f"exit {ended.code}, expected 1")
    return Shown("wrong" if notes else "right", said, tuple(notes))


def show_dumps() -> Shown:
    """`ddpdoctor analyze` of the recorder's dumps that this torch wrote of a job of gloo, in both forms."""
    with make_folder() as folder:
        out = folder / "dumps"
        out.mkdir()
        command = [*TORCHRUN, "--nproc-per-node", "3", str(JOBS / "dump.py"), str(out)]
        sizes = {name: "2000" for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")}
        job = execute(command, folder / "job", sizes)
        if job.code != 0:
            return Shown("wrong", f"the job ended with {job.code}", job.tail())
        shown = {}
        missing = []
        for form in ("pickle", "json"):
            if (out / form).is_dir():
                ended = ask_doctor(folder / form, "analyze", str(out / form))
                shown[form] = judge_named(ended, ranks=[1], codes=("COL003",))
            else:
                missing.append(form)
    notes = [f"{form}: {note}" for form, each in shown.items() for note in each.notes]
    if missing:
        notes.append(f"this torch writes none of a job of gloo as {' or '.join(missing)}")
    wrong = any(each.outcome == "wrong" for each in shown.values())
    text = ", ".join(f"{form} {each.text}" for form, each in shown.items()) or "none written"
    return Shown("wrong" if wrong else "right" if shown else "absent", text, tuple(notes))


def show_lint() -> Shown:
    """All scripts of tests/faults as `lint` reads them, and the command on one of them."""
    readings = read_cases(load_all())
    readable = [each for each in readings if each.readable]
    found = sorted(each.truth.name for each in readable if each.right)
    healthy = [each for each in readings if each.truth.is_healthy and each.alarms]
    notes = [f"alarm on {each.truth.name}: {', '.join(each.alarms)}" for each in healthy]
    with make_folder() as folder:
        broken = next(each for each in readings if each.right)
        ended = ask_doctor(folder, "lint", str(broken.truth.folder))
    wrong = bool(healthy)
    if ended.code != 1 or name_first(ended.report) not in broken.right:
        wrong = True
        notes.append(f"the command: exit {ended.code}, {name_first(ended.report)}")
    text = f"{len(found)} of {len(readable)}, {len(healthy)} false"
    return Shown("wrong" if wrong else "right", text, tuple(notes), {"found": found})


def show_fidelity() -> Shown:
    """A training under torchrun and under `run`: the same numbers, output and exit code, also where it fails."""
    notes: list[str] = []
    ways: dict[str, list[str]] = {"ends well": [], "fails": ["fail"]}
    for name, words in ways.items():
        with make_folder() as folder:
            arguments = ["--nproc-per-node", "2", str(JOBS / "train.py"), *words]
            watched = [*DOCTOR, "run", "--run-dir", str(folder / "kept"), "--standalone", *arguments]
            commands = ([*TORCHRUN, *arguments], watched)
            with ThreadPoolExecutor() as pool:
                ended = list(pool.map(execute, commands, (folder / "plain", folder / "watched")))
        notes += [f"a job that {name}: {text}" for text in compare_ends(*ended)]
    return Shown("wrong" if notes else "right", "not the same" if notes else "the same", tuple(notes))


def compare_ends(plain: Ended, watched: Ended) -> list[str]:
    """Return in what the job under us is another than without; ranks may write in another order.

    Lines that gloo itself prints of its connections are left out: both ranks write them in pieces, at once.
    """
    notes = []
    if plain.code != watched.code:
        notes.append(f"exit {watched.code} instead of {plain.code}")
    lines = [
        sorted(line for line in each.stdout.splitlines() if not _OF_GLOO.search(line))
        for each in (plain, watched)
    ]
    if not lines[0]:
        notes.append("it printed nothing without us")
    if lines[0] != lines[1]:
        other = [line for line in lines[1] if line not in lines[0]]
        notes.append(f"{len(other)} other lines on stdout, first {other[:1]}")
    return notes


_OF_GLOO = re.compile(r"\[Gloo\]|peer ranks|^\s*$")


def show_warnings() -> Shown:
    """Every warning that Python can give, of our commands and of a job under `run` that has none without."""
    every = {"PYTHONWARNINGS": "always"}
    notes = []
    with make_folder() as folder:
        plain = execute([*TORCHRUN, "--nproc-per-node", "2", str(JOBS / "train.py")], folder / "plain", every)
        train = ["--standalone", "--nproc-per-node", "2", str(JOBS / "train.py")]
        run = ask_doctor(folder / "run", "run", "--run-dir", str(folder / "kept"), *train, variables=every)
        log = folder / "train.log"
        log.write_text(plain.stdout + plain.stderr)
        ours = {
            "check": ask_doctor(folder / "check", "check", "--nproc", "2", variables=every),
            "analyze": ask_doctor(folder / "analyze", "analyze", str(log), variables=every),
            "lint": ask_doctor(folder / "lint", "lint", str(JOBS), variables=every),
            "report": execute(
                [*DOCTOR, "report", str(folder / "check/report.json")], folder / "report", every
            ),
        }
        for name, ended in ours.items():
            notes += [f"{name}: {_join(each)}" for each in find_warnings(ended.stderr + ended.stdout)]
        with_us, without = (Counter(map(_join, find_warnings(each.stderr))) for each in (run, plain))
        notes += [f"run: {text}" for text in (with_us - without).elements()]
    counted = [f"{text} ({number} times)" if number > 1 else text for text, number in Counter(notes).items()]
    return Shown("wrong" if notes else "right", str(len(notes)) if notes else "none", tuple(counted))


def _join(warning: tuple[str, str, str]) -> str:
    file, kind, text = warning
    text = re.sub(r"'/[^']*'|\d+", "…", text)  # temporary files and process ids are others each time
    return f"{'/'.join(Path(file).parts[-3:])}: {kind}: {text[:160]}"


def show_tests() -> Shown:
    """The tests that start no jobs."""
    with make_folder() as folder:
        told = folder / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", LEFT_OUT]
        places = [str(ROOT / "tests" / name) for name in FAST]
        ended = execute([*command, f"--junitxml={told}", *places], folder, limit_s=TESTS_S, cwd=ROOT)
        if not told.exists():
            return Shown("wrong", f"pytest ended with {ended.code}", ended.tail())
        suites = junitparser.JUnitXml.fromfile(str(told))
    bad = (junitparser.Failure, junitparser.Error)
    cases = [case for suite in suites for case in suite]
    failed = [case for case in cases if any(isinstance(result, bad) for result in case.result)]
    notes = [f"{case.classname}::{case.name}: {str(case.result[0].message)[:200]}" for case in failed]
    text = f"{suites.tests - len(failed) - suites.skipped} passed"
    text += f", {len(failed)} failed" if failed else ""
    return Shown("wrong" if failed else "right", text, tuple(notes), {"skipped": suites.skipped})


STEPS: dict[str, Callable[[], Shown]] = {
    "facts": show_facts,
    "check": show_check,
    "hosts": show_hosts,
    "attach": show_attach,
    "dumps": show_dumps,
    "lint": show_lint,
    "fidelity": show_fidelity,
    "warnings": show_warnings,
    "cases": show_cases,
    "tests": show_tests,
}
"""In the order in which they are tried."""


def main() -> None:
    """Try one step and write what it showed."""
    name, file = sys.argv[1:]
    started = time.monotonic()
    shown = STEPS[name]()
    written: dict[str, Any] = asdict(replace(shown, seconds=round(time.monotonic() - started, 1)))
    Path(file).write_text(json.dumps(written))


if __name__ == "__main__":
    main()
