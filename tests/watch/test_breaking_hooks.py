"""A hook that raises is taken out and said; the job's code, output and numbers are as without us.

``DDPDOCTOR_TEST_PYTHON`` names another interpreter, so another torch; ``-m long`` goes through all functions of ours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.watch.breaking_hooks import EDGES, Ended, list_targets, run_job

PYTHON = os.environ.get("DDPDOCTOR_TEST_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = run_job(tmp_path_factory.mktemp("plain") / "job", PYTHON, watched=False)
    assert ended.codes == (7, 7), ended
    return ended


def test_calls_that_cannot_be_written_down_are_given_up_and_the_job_feels_nothing(
    plain: Ended, tmp_path: Path
) -> None:
    ended = run_job(tmp_path / "broken", PYTHON, target="calls.ring:_describe_signature")
    assert (ended.codes, ended.stdout, ended.stderr) == (plain.codes, plain.stdout, plain.stderr)
    said = [text for text in ended.troubles if text.startswith("calls: ")]
    assert said == ["calls: ZeroDivisionError: made to fail"] * 2, "once in each rank: it is taken out"
    heads = [path.read_bytes()[:8] for path in (tmp_path / "broken").glob("attempt-*/run/processes/*.ring")]
    assert set(heads) == {b"DDPBLIND"}, (
        "what DistributedDataParallel began is there, and no reader may rely on it"
    )


def test_what_sees_modules_called_is_not_taken_for_the_programs_when_it_raises(
    plain: Ended, tmp_path: Path
) -> None:
    """The descriptor that calls it keeps the frame of ``Module.__call__`` in a variable, as a signal handler is given it."""
    ended = run_job(tmp_path / "broken", PYTHON, target="models.modules:_note_module")
    assert (ended.codes, ended.stdout, ended.stderr) == (plain.codes, plain.stdout, plain.stderr)
    assert [text for text in ended.troubles if text.startswith("running: ")]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(0)  # Some 250 runs of two ranks.
def test_no_function_of_ours_that_raises_is_felt(plain: Ended, tmp_path: Path) -> None:
    targets = list_targets(tmp_path / "list", PYTHON)
    assert len(targets) > 200
    assert not EDGES & set(targets)
    felt = {}
    for number, target in enumerate(targets):
        ended = run_job(tmp_path / str(number), PYTHON, target=target)
        if (ended.codes, ended.stdout, ended.stderr) != (plain.codes, plain.stdout, plain.stderr):
            felt[target] = ended
    assert felt == {}
