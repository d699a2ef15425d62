"""ENV007 in programs of several files: the environment may be read in a file that mentions nothing of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.source.gather import read_sources
from tests.lint.judging import RULES

OPTIONS = """\
import argparse
import torch.distributed as dist
def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    return parser
"""
PARSE = """\
def parse_args(parser):
    args = parser.parse_args()
    return args
"""
READS = "import os\n" + PARSE.replace(
    "    return", "    args.local_rank = int(os.environ['LOCAL_RANK'])\n    return"
)
USES = (
    "\nimport torch.distributed as dist\nargs = parse_args(get_parser())\ndist.init_process_group('nccl')\n"
)
LAYOUTS = {
    "flat": ("options.py", "env.py", "train.py", "from options import get_parser\nfrom env import parse_args"),
    "a package": ("lib/options.py", "lib/env.py", "train.py", "from lib.options import get_parser\nfrom lib.env import parse_args"),
    "relative": ("lib/options.py", "lib/env.py", "lib/train.py", "from .options import get_parser\nfrom .env import parse_args"),
    "modules": ("lib/options.py", "lib/env.py", "lib/train.py", "from . import options, env\nget_parser, parse_args = options.get_parser, env.parse_args"),
    "another root": ("src/lib/options.py", "src/lib/env.py", "train.py", "import sys\nsys.path.insert(0, 'src')\nfrom lib.options import get_parser\nfrom lib.env import parse_args"),
    "the package's init": ("options.py", "lib/__init__.py", "train.py", "from options import get_parser\nfrom lib import parse_args"),
}  # fmt: skip


def find(folder: Path, files: dict[str, str]) -> list[bool]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    rows = read_sources([str(folder)], RULES)
    return [fact.certain for row in rows for fact in row.facts if fact.rule == "local-rank-option"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_reads_the_environment_in_any_file_is_right(tmp_path: Path, layout: str) -> None:
    options, env, train, imports = LAYOUTS[layout]
    assert find(tmp_path, {options: OPTIONS, env: READS, train: imports + USES}) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_reads_it_nowhere_is_wrong(tmp_path: Path, layout: str) -> None:
    options, env, train, imports = LAYOUTS[layout]
    assert find(tmp_path, {options: OPTIONS, env: PARSE, train: imports + USES}) == [True]


def test_what_is_imported_through_other_files_counts(tmp_path: Path) -> None:
    files = {"options.py": OPTIONS, "middle.py": "from env import parse_args\n", "env.py": READS}
    assert (
        find(
            tmp_path,
            {**files, "train.py": "from options import get_parser\nfrom middle import parse_args" + USES},
        )
        == []
    )


@pytest.mark.parametrize(
    "files",
    [
        {"options.py": OPTIONS},
        {"options.py": OPTIONS.replace("return parser", "return parser.parse_args()")},
        {"options.py": OPTIONS, "train.py": "from options import get_parser\nfrom company.env import parse_args" + USES},
        {
            "options.py": OPTIONS,
            "train.py": "import importlib\nfrom options import get_parser\nparse_args = importlib.import_module('env').parse_args" + USES,
        },
    ],
    ids=["nobody uses it", "nobody calls it", "a package that is not here", "imported by name"],
)  # fmt: skip
def test_part_of_a_program_is_only_suspected(tmp_path: Path, files: dict[str, str]) -> None:
    assert find(tmp_path, files) == [False]


def test_a_main_file_that_only_names_the_variable_belongs_to_the_program(tmp_path: Path) -> None:
    main = "import os\nfrom options import get_parser\nargs = get_parser().parse_args()\nargs.local_rank = int(os.environ['LOCAL_RANK'])\n"
    assert find(tmp_path, {"options.py": OPTIONS, "main.py": main}) == []


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ("cfg.LOCAL_RANK = args.local_rank\n", [True]),
        ("import subprocess\nsubprocess.run(['git', 'rev-parse', 'HEAD'], stdout=subprocess.PIPE)\n", [True]),
        ("import subprocess\nhost = subprocess.getoutput('scontrol show hostnames')\n", [True]),
        ("import subprocess\nsubprocess.run(['python', 'worker.py', '--local_rank', '0'])\n", []),
        ("import os\nlocal_rank = os.environ['LOCAL_RANK']\n", []),
        ("from os import environ\nlocal_rank = environ.get('LOCAL_RANK')\n", []),
    ],
)
def test_what_reads_the_variable_or_starts_the_ranks(tmp_path: Path, extra: str, found: list[bool]) -> None:
    train = f"from options import get_parser\nfrom env import parse_args{USES}{extra}"
    assert find(tmp_path, {"options.py": OPTIONS, "env.py": PARSE, "train.py": train}) == found


@pytest.mark.parametrize(("common", "found"), [("def build():\n    pass\n", [True]), (READS, [])])
def test_another_script_that_reads_it_helps_no_script_with_a_parser_of_its_own(
    tmp_path: Path, common: str, found: list[bool]
) -> None:
    guard = "if __name__ == '__main__':\n    "
    script = f"import common\n{OPTIONS}{guard}args = get_parser().parse_args()\n    dist.init_process_group('nccl')\n"
    other = f"import os, common\nimport test\n{guard}rank = int(os.environ['LOCAL_RANK'])\n"
    assert find(tmp_path, {"test.py": script, "train.py": other, "common.py": common}) == found
