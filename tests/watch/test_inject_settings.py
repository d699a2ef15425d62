"""Debug settings that a program makes itself: seen with their line, and what torch went by in the end."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.watch.injecting import launch, line_of, write

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def test_variables_are_seen_with_their_line_and_secrets_are_not(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import os
        os.environ["NCCL_DEBUG"] = "INFO"  # one
        os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")  # two
        os.environ.update(TORCH_NCCL_BLOCKING_WAIT="1")  # three
        os.putenv(b"NCCL_IB_DISABLE", b"1")  # four
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["API_TOKEN"] = "hf_secret"
        os.environ["HOME"] = "/nowhere"
        try:
            os.putenv(1, "x")
        except TypeError:
            pass
        del os.environ["NCCL_DEBUG"]  # five
        try:
            os.environ["NCCL_DEBUG"] = "a\\0b"
        except ValueError:
            print("as ever", os.environ.get("NCCL_DEBUG"), os.environ["HOME"])
        """,
    )
    watched = launch([sys.executable, str(script)], tmp_path)
    assert watched.stdout == "as ever None /nowhere\n"
    events = watched.main().all("setting")
    assert [(event["name"], event["value"]) for event in events][:5] == [
        ("NCCL_DEBUG", "INFO"), ("CUDA_LAUNCH_BLOCKING", "1"), ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("NCCL_IB_DISABLE", "1"), ("NCCL_DEBUG", ""),
    ]  # fmt: skip
    for event, mark in zip(events, ("one", "two", "three", "four", "five"), strict=False):
        lines = [line for file, line, _ in event["frames"] if file == str(script)]
        assert lines == [line_of(script, f"# {mark}")]
        assert event["cuda"] is False
    assert "hf_secret" not in watched.main().path.read_text()


def test_what_torch_went_by_is_told_at_the_end(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import os, torch
        import torch.distributed as dist
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
        torch.cuda._initialized = True
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        torch.cuda._initialized = False
        for _ in range(12):
            with torch.autograd.detect_anomaly(check_nan=False):  # mark
                pass
        with torch.autograd.set_detect_anomaly(False):
            pass
        torch.autograd.set_detect_anomaly(True)
        """,
    )
    watched = launch([sys.executable, str(script)], tmp_path, variables=RANK)
    assert re.findall(r"(\w+\.py):\d+: UserWarning: Anomaly", watched.stderr) == ["train.py"]
    events = watched.main().all("setting")
    seen = [(event["name"], event["value"], event["how"], event["count"], event["cuda"]) for event in events]
    assert seen == [
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", "set", 1, False),
        ("CUDA_LAUNCH_BLOCKING", "1", "set", 1, True),
        ("anomaly mode", "on", "set", 1, False),
        ("anomaly mode", "on", "set", 10, False),
        ("anomaly mode", "on", "end", 1, False),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", "end", 1, False),
    ]
    assert events[2]["frames"][0][1] == line_of(script, "# mark")
