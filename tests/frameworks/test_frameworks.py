"""Jobs of Accelerate, of Lightning and of transformers' Trainer: healthy ones stay silent, a fault is named by the user's line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marks import mostly_long

pytestmark = pytest.mark.slow

# Each job ends with a collection: torch aborts a process, now and then, in which a wrapper is alive at its end.
ACCELERATE = """\
import gc
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main(fault):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 8, generator=made), torch.randn(64, 1, generator=made))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                forward = accelerator.unwrap_model(model) if fault else model
                loss = (forward(x) - y).square().mean()  # MARK
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.end_training()


main("fault" in sys.argv)
gc.collect()
"""
LIGHTNING = """\
import gc
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        return (self.net(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def main(fault):
    lightning.seed_everything(1)
    made = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 8, generator=made), torch.randn(64, 1, generator=made))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=not fault,
    )
    trainer.fit(Model(), DataLoader(data, 8, shuffle=True))  # MARK


main("fault" in sys.argv)
gc.collect()
"""
TRAINER = """\
import gc
import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 50, (12,), generator=made), "labels": torch.tensor(index % 2)}


class Own(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        if "fault" in sys.argv:
            model = getattr(model, "module", model)
        return super().compute_loss(model, inputs, *args, **kwargs)  # MARK


def main():
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )
    Own(model=BertForSequenceClassification(config), args=arguments, train_dataset=Texts()).train()


main()
gc.collect()
"""
FRAMEWORKS = {
    "accelerate": (ACCELERATE, ["--nproc", "2"], "DDP005"),
    "lightning": (LIGHTNING, ["--", sys.executable], "DAT001"),
    "transformers": (TRAINER, ["--nproc", "2"], "DDP005"),
}


def watch(folder: Path, name: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run a framework's job under `run`; return the report and what was printed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    source, launch, _ = FRAMEWORKS[name]
    (folder / "train.py").write_text(source)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "run", "--run-dir", "run", *launch, "train.py", *arguments],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run" / "report.json").read_text()), done.stderr


@pytest.mark.parametrize("name", mostly_long(FRAMEWORKS, "transformers"))
def test_healthy_job_is_silent(name: str, tmp_path: Path) -> None:
    report, said = watch(tmp_path, name)
    assert report["verdict"]["status"] == "healthy", said
    looked = report["evidence"]["training"][0]
    assert looked["ranks"] == "0-1"
    assert looked["steps"], "nothing was looked at"


@pytest.mark.parametrize("name", mostly_long(FRAMEWORKS, "accelerate"))
def test_fault_is_named_by_the_line_of_the_user(name: str, tmp_path: Path) -> None:
    source, _, code = FRAMEWORKS[name]
    report, said = watch(tmp_path, name, "fault")
    first = report["findings"][0]
    assert first["code"] == code, said
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.endswith("# MARK"))
    assert (first["where"][0]["file"], first["where"][0]["line"]) == ("train.py", line)


def test_accelerate_launch_that_starts_one_process_of_four_is_named(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    (tmp_path / "train.py").write_text(
        "import accelerate\nprint(accelerate.Accelerator(cpu=True).num_processes)\n"
    )
    launch = ["run", "--run-dir", "run", "--", sys.executable, "-m", "accelerate.commands.launch"]
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", *launch, "--num_processes", "4", "train.py"],
        cwd=tmp_path,
        # No GPU, and no configuration of the machine's user: either may make four ranks of it.
        env={
            **os.environ,
            "HF_HOME": str(tmp_path / "home"),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    (finding,) = report["findings"]
    assert (finding["code"], finding["details"]["asked"], finding["details"]["started"]) == ("ENV021", 4, 1)
