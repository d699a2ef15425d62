"""The line that is named is the user's, whatever his folders are called: watched, and from what a job printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, decode, encode
from ddpdoctor.watch.readers.records import Shortener
from tests.marks import mostly_long
from tests.watch.injecting import line_of, write
from tests.watch.launching import doctor, finish, start

SCRIPT = """
import torch.distributed as dist

def load(shards):
    return shards["seven"]  # here

dist.init_process_group("gloo")
load({})
"""
FOLDERS = ("torch", "ddpdoctor", "lib/python3", "my-site-packages", "torch/distributed")


@pytest.mark.slow
@pytest.mark.parametrize("folder", mostly_long(FOLDERS, "torch"))
def test_the_line_of_a_script_in_a_folder_of_any_name_is_named(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    script = write(tmp_path / folder, SCRIPT)
    out = tmp_path / "out"
    ended = finish(start(doctor(out, "--nproc", "1", f"{folder}/train.py"), out, tmp_path), out)
    assert ended.code == 1
    report = json.loads((out / "run" / "report.json").read_text())
    place = report["findings"][0]["where"][0]
    assert (place["file"], place["line"]) == (f"{folder}/train.py", line_of(script, "# here"))
    assert f"{folder}/train.py:{place['line']}" in ended.stderr.decode()


def test_what_a_process_says_of_its_torch_goes_before_the_names_of_folders(tmp_path: Path) -> None:
    shorten = Shortener(tmp_path)
    rows = [[str(tmp_path / "torch" / name), 3, "f"] for name in ("new.py", "nn/modules/conv.py")]
    assert [frame.whose for frame in shorten.frames(rows)] == ["user", "torch"]
    shorten.learn({"event": "torch", "folder": str(tmp_path / "torch")})
    frames = shorten.frames(rows)
    assert [(frame.file, frame.whose) for frame in frames] == [
        ("torch/new.py", "torch"),
        ("torch/nn/modules/conv.py", "torch"),
    ]
    assert decode(Frame, encode(frames[0])).whose == "torch"
    other = Shortener(tmp_path)
    other.learn({"event": "torch", "folder": "/opt/venv/lib/python3.11/site-packages/torch"})
    assert [frame.whose for frame in other.frames(rows)] == ["user", "user"]


@pytest.mark.parametrize("said", [None, 7, "", "/", ["a"]])
def test_what_a_process_says_wrongly_of_its_folders_changes_nothing(tmp_path: Path, said: object) -> None:
    shorten = Shortener(tmp_path)
    event: Any = {"event": "start", "library": said, "folder": said}
    shorten.learn(event)
    assert shorten.frames([[str(tmp_path / "train.py"), 3, "f"]])[0].is_user
