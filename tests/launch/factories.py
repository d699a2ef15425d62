"""Models of users, and what can go wrong when they are built. Given to ``--model`` by the tests."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import threading
import time
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, torch.Tensor]
KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _build() -> Made:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)


def healthy() -> Made:
    return _build()


class Gated(nn.Module):
    """A branch that its forward never takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out


def gated() -> Made:
    return Gated(), torch.ones(2, 4)


def raises() -> Made:
    raise KeyError("vocab.txt")


def returns_nonsense() -> Any:
    return "a model"


def hangs_on_one() -> Made:
    if os.environ["RANK"] == "1":
        time.sleep(10_000)  # marker: hang
    return _build()


def killed_on_one() -> Made:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return _build()


def exits_on_one() -> Made:
    if os.environ["RANK"] == "1":
        os._exit(7)
    return _build()


def stopped_on_one() -> Made:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return _build()


def leaves_a_thread() -> Made:
    threading.Thread(target=time.sleep, args=(10_000,)).start()
    return _build()


def keeps_a_temporary_directory() -> Made:
    KEPT.append(tempfile.TemporaryDirectory())
    return _build()


def crashes_on_one() -> Made:
    if os.environ["RANK"] == "1":
        ctypes.string_at(0)  # marker: crash
    return _build()
