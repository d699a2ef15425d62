"""Both callbacks in their frameworks' real trainers: which phases they name, and what `run` makes of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unmeasured import unmeasured

HUGGING_FACE = """\
import sys
import torch
from transformers import Trainer, TrainingArguments
from ddpdoctor_callbacks.huggingface import PhaseCallback
import ddpdoctor_callbacks.huggingface as module

names = []
real = module.mark_phase
def mark(name):
    if not names or names[-1] != name:
        names.append(name)
    real(name)
module.mark_phase = mark


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        out = self.body(x)
        if "fault" in sys.argv and not self.training and torch.distributed.get_rank() == 1:
            raise RuntimeError("label 9917")
        return {"loss": (out - labels).square().mean(), "logits": out}


data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(8)]
arguments = TrainingArguments("out", num_train_epochs=2, per_device_train_batch_size=2, use_cpu=True, report_to=[],
                              eval_strategy="epoch", save_strategy="epoch", disable_tqdm=True)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[PhaseCallback()]).train()
print(names)
"""
LIGHTNING = """\
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from ddpdoctor_callbacks.lightning import PhaseCallback
import ddpdoctor_callbacks.lightning as module

names = []
def mark(name):
    if not names or names[-1] != name:
        names.append(name)
module.mark_phase = mark


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.body(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.body(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
                            enable_model_summary=False, callbacks=[PhaseCallback()])
trainer.fit(Model(), loader, loader)
print(names)
"""


def run(folder: Path, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=unmeasured(), capture_output=True, text=True, check=False
    )


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@needs("transformers")
@pytest.mark.slow
def test_phases_of_hugging_faces_trainer_are_named_in_their_order(tmp_path: Path) -> None:
    done = run(tmp_path, HUGGING_FACE, "train.py")
    assert done.returncode == 0, done.stderr[-2000:]
    names = done.stdout.strip().splitlines()[-1]
    first, second = (
        f"'training, epoch {each}', 'evaluation, epoch {each}', 'checkpoint, epoch {each}', 'training, epoch {each}'"
        for each in (0, 1)
    )
    assert names == f"[{first}, {second}, None]"


@needs("lightning")
@pytest.mark.slow
def test_phases_of_lightnings_trainer_are_named_in_their_order(tmp_path: Path) -> None:
    done = run(tmp_path, LIGHTNING, "train.py")
    assert done.returncode == 0, done.stderr[-2000:]
    names = done.stdout.strip().splitlines()[-1]
    for each in ("sanity check, epoch 0", "training, epoch 0", "validation, epoch 0", "checkpoint, epoch 1"):
        assert each in names
    assert names.index("validation, epoch 0") < names.index("training, epoch 1")
    assert names.endswith("None]")


@needs("transformers")
@pytest.mark.slow
@pytest.mark.long
def test_failure_in_an_evaluation_is_reported_with_its_phase(tmp_path: Path) -> None:
    command = ["-m", "ddpdoctor", "run", "--nproc", "2", "--json", "report.json", "train.py", "fault"]
    done = run(tmp_path, HUGGING_FACE, *command)
    assert done.returncode == 1, done.stderr[-2000:]
    cause = json.loads((tmp_path / "report.json").read_text())["findings"][0]
    assert (cause["code"], cause["ranks"]) == ("ERR001", [1])
    said = {each["text"]: each["ranks"] for each in cause["evidence"] if each["kind"] == "phase"}
    assert 1 in said["in 'evaluation, epoch 0', as the program calls it"]
