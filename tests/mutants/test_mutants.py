"""The operators on the project's own code: what they make parses and is wrong, and what is counted is counted right."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import upstream
from tests.mutants.operators import OPERATORS
from tests.mutants.programs import find_programs
from tests.mutants.score import make_section, summarize
from tests.mutants.sources import Source, half_of, read_list, unpack_own
from tests.mutants.syntax import File, apply, places
from tests.mutants.trial import Result, read_results, try_source
from tests.parts import replace_part

SAMPLE = Path(__file__).resolve().parent / "sample"
NAMES = ("helpers.py", "train.py")
APPLICABLE = {
    *"anomalies-left-on barrier-before-group change-after-wrap collective-under-rank data-parallel-inside".split(),
    *"directory-without-exist drop-sampler drop-set-epoch evaluation-under-rank helper-not-called".split(),
    *"initialized-twice leaves-on-own-data metric-not-reduced never-destroyed never-initialized".split(),
    *"one-seed-for-all one-spelling optimizer-not-restored plain-sampler returns-on-own-data save-by-all".split(),
    *"shuffle-without-sampler stops-on-own-data through-module unfreeze-after-wrap".split(),
    *"uneven-shards work-not-waited attribute-of-wrapper".split(),
}
"""Operators that change the sample: the others need something that it has not."""


@functools.cache
def read_sample() -> tuple[File, ...]:
    """Return the files of the sample, with a backend that operators ask for."""
    texts = [(SAMPLE / name).read_text().replace('"gloo"', '"nccl"') for name in NAMES]
    return tuple(File(name, text, "\n".join(texts)) for name, text in zip(NAMES, texts, strict=True))


def make(name: str) -> tuple[File, str, set[int]]:
    """Return the file of the sample that an operator changes first, its new text, and where a finding is right."""
    for file in read_sample():
        for edit in OPERATORS[name].find(file):
            changed = apply(file, edit)
            return file, changed, places(file, edit, changed)[0]
    pytest.fail(f"{name} changes nothing of the sample")


def write(folder: Path, name: str) -> None:
    """Write the sample as an operator changes it."""
    shutil.copytree(SAMPLE, folder)
    if name:
        file, changed, _ = make(name)
        (folder / file.name).write_text(changed.replace('"nccl"', '"gloo"'))


@pytest.mark.parametrize("name", sorted(APPLICABLE))
def test_a_mutant_parses_and_differs(name: str) -> None:
    file, changed, right = make(name)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(file.text))
    assert right
    assert max(right) <= len(changed.splitlines()) + 1


def test_operators_are_of_the_catalogue() -> None:
    assert len(OPERATORS) >= 25
    for operator in OPERATORS.values():
        assert operator.codes
        assert all(len(code) == 6 and code[3:].isdigit() for code in operator.codes)
        assert operator.severity in ("warning", "error")


def test_only_the_operator_changes_the_text() -> None:
    file, changed, _ = make("drop-set-epoch")
    assert changed == file.text.replace("        train_sampler.set_epoch(epoch)\n", "")


@pytest.mark.parametrize("line", ["torch.save(state, path)", "\n    torch.save(state, path)"])
def test_the_body_of_a_branch_stays(line: str) -> None:
    text = f"if dist.get_rank() == 0: {line}\n"
    file = File("train.py", text, text)
    (edit,) = OPERATORS["save-by-all"].find(file)
    assert apply(file, edit).strip() == "torch.save(state, path)"


def test_lines_are_followed_through_a_change() -> None:
    file = read_sample()[1]
    edit = next(iter(OPERATORS["drop-set-epoch"].find(file)))
    changed = apply(file, edit)
    right, moved = places(file, edit, changed)
    old, new = file.text.splitlines(), changed.splitlines()
    assert all(old[before - 1] == new[after - 1] for before, after in moved.items())
    assert any("DistributedSampler(train_set)" in new[line - 1] for line in right if line <= len(new))


def test_halves_stay() -> None:
    assert half_of("pytorch/examples") == "unseen"
    assert half_of("karpathy/nanoGPT") == "seen"
    packages = {entry["project"] for entry in read_list()["packages"]}
    assert packages <= {entry["name"] for entry in read_list()["repositories"]}
    halves = [half_of(entry["name"]) for entry in read_list()["repositories"]]
    assert min(halves.count("seen"), halves.count("unseen")) > len(halves) // 4


def test_a_program_is_a_script_with_its_imports(tmp_path: Path) -> None:
    write(tmp_path / "job", "")
    (tmp_path / "job" / "unrelated.py").write_text("print('no job')\n")
    programs = find_programs(tmp_path / "job")
    assert [(program.script, set(program.files)) for program in programs] == [
        ("train.py", {"train.py", "helpers.py"})
    ]


def test_the_sample_is_scored(tmp_path: Path) -> None:
    write(tmp_path / "job", "")
    source = Source("own/sample", tmp_path / "job", "here")
    result = try_source(source, ["collective-under-rank", "drop-sampler", "uneven-shards"])
    assert result.findings == []
    found = {mutant.operator: mutant for mutant in result.mutants}
    assert set(found) == {"collective-under-rank", "drop-sampler", "uneven-shards"}
    assert found["collective-under-rank"].found
    assert found["collective-under-rank"].placed
    assert not found["uneven-shards"].found
    assert found["uneven-shards"].undecided
    assert any("1 operators" in row or "3 operators" in row for row in summarize([result]))
    assert "| COL002 |" in make_section([result])


def test_healthy_jobs_have_no_findings(tmp_path: Path) -> None:
    sources = [source for source in unpack_own(tmp_path) if "trains-e" in source.name]
    assert sources
    for source in sources:
        assert try_source(source, most=0).findings == []


def test_the_sections_are_parts_of_the_page() -> None:
    result = Result("own/nothing", half_of("own/nothing"), "here")
    page = "# Accuracy\n\ntable\n\n## As read by `lint`\n\nend\n"
    once = replace_part(page, make_section([result]))
    assert once.startswith(page)
    twice = replace_part(once, upstream.make_section([]))
    assert twice.startswith(once)
    assert replace_part(twice, make_section([result])) == twice


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "job", "")
    result = try_source(Source("own/sample", tmp_path / "job", "here"), ["collective-under-rank"])
    (tmp_path / "told.json").write_text(json.dumps([result.to_dict()]))
    assert read_results(tmp_path / "told.json") == [result]


def test_corrections_are_listed_once() -> None:
    fixes = upstream.read_fixes()
    assert len(fixes) >= 40
    assert len({(fix.commit, fix.path) for fix in fixes}) == len(fixes)
    assert all(len(fix.commit) == 40 for fix in fixes)


def test_undecided_mutants_do_not_count() -> None:
    result = Result("own/nothing", half_of("own/nothing"), "here")
    assert "recall 0 of 0" in "\n".join(summarize([result]))


def run(folder: Path) -> tuple[int, list[dict[str, object]]]:
    """Run the sample with two ranks; return the exit code and what each rank wrote."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=280)
    told = [json.loads(path.read_text()) for path in sorted((folder / "out").glob("rank*.json"))]
    return done.returncode, told


@pytest.mark.long
def test_the_sample_is_right(tmp_path: Path) -> None:
    write(tmp_path / "job", "")
    code, (one, two) = run(tmp_path / "job")
    assert code == 0
    assert one["weights"] == two["weights"]
    orders = one["orders"]
    assert isinstance(orders, list)
    assert orders[0] != orders[1]
    assert one["orders"] != two["orders"]


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "collective-under-rank",
        "evaluation-under-rank",
        "never-initialized",
        "initialized-twice",
        "attribute-of-wrapper",
    ],
)
def test_mutants_that_fail_do(tmp_path: Path, name: str) -> None:
    write(tmp_path / "job", name)
    assert run(tmp_path / "job")[0] != 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["through-module", "drop-sampler", "drop-set-epoch"])
def test_mutants_that_train_wrong_do(tmp_path: Path, name: str) -> None:
    write(tmp_path / "job", name)
    code, (one, two) = run(tmp_path / "job")
    assert code == 0
    orders = one["orders"]
    assert isinstance(orders, list)
    if name == "through-module":
        assert one["weights"] != two["weights"]
    elif name == "drop-sampler":
        assert all(sorted(order) == list(range(64)) for order in orders)
    else:
        assert orders[0] == orders[1] == orders[2]
