from pathlib import Path

import torch


class LocalCheckpoints:
    """Shards on the disk of each node; a background job copies them elsewhere."""

    def __init__(self, root, replica, shard):
        self.folder = Path(root) / f"node{replica}" / f"shard{shard}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, model, step):
        torch.save(model.state_dict(), self.folder / f"step_{step:06d}.pt")

    def load_latest(self, model):
        path = max(self.folder.glob("step_*.pt"))  # culprit
        model.load_state_dict(torch.load(path, weights_only=True))  # culprit
        return path.name
