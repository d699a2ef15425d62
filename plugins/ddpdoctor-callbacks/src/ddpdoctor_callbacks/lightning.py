"""Callback for the Trainer of Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from ddpdoctor import mark_phase


class PhaseCallback(Callback):  # type: ignore[misc]  # lightning is not there where types are checked
    """Names training, validation, test and checkpoint with their epoch."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, or goes on."""
        _mark("training", trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Training goes on: Lightning does not say when a checkpoint is written."""
        _mark("training", trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins; before the training it is Lightning's own check."""
        _mark("sanity check" if trainer.sanity_checking else "validation", trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over."""
        _mark("training", trainer)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """The test begins."""
        mark_phase("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The test is over."""
        mark_phase(None)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is put together; it is written next."""
        _mark("checkpoint", trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The training is over."""
        mark_phase(None)


def _mark(name: str, trainer: Any) -> None:
    mark_phase(f"{name}, epoch {trainer.current_epoch}")
