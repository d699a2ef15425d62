import torch.distributed.checkpoint as dcp


class CheckpointManager:
    def __init__(self, root, model, optimizer, scheduler):
        self.root = root
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler

    def _path(self, step):
        return f"{self.root}/step_{step}"

    def save(self, step):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "step": step,
        }
        dcp.save(state, checkpoint_id=self._path(step))

    def load(self, step):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # culprit
            "scheduler": self.scheduler.state_dict(),
            "step": 0,
        }
        dcp.load(state, checkpoint_id=self._path(step))  # culprit
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])  # culprit
        self.scheduler.load_state_dict(state["scheduler"])
        return state["step"]
