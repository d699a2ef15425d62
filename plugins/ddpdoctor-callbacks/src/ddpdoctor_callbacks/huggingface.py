"""Callback for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ddpdoctor import mark_phase


class PhaseCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there where types are checked
    """Names training, evaluation and checkpoint with their epoch.

    After a step the trainer evaluates, then saves; its flow callback, which comes before ours, has decided whether.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Training begins, or goes on."""
        self.epoch = round(state.epoch or 0)  # from its last step on the state has the next one's
        self._mark("training")

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Evaluation or a checkpoint may come."""
        self._mark_next(evaluates=control.should_evaluate, saves=control.should_save)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Evaluation or a checkpoint may come."""
        self._mark_next(evaluates=control.should_evaluate, saves=control.should_save)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Evaluation, also where the program asks for it."""
        self._mark("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The evaluation is over."""
        self._mark_next(evaluates=False, saves=control.should_save)

    def on_predict(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The prediction is over."""
        mark_phase(None)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The checkpoint is written."""
        self._mark("training")

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The training is over."""
        mark_phase(None)

    def _mark_next(self, *, evaluates: bool, saves: bool) -> None:
        self._mark("evaluation" if evaluates else "checkpoint" if saves else "training")

    def _mark(self, name: str) -> None:
        mark_phase(f"{name}, epoch {self.epoch}")
