import os

import torch

from .common import is_main


class Checkpointer:
    def __init__(self, path, model):
        self.path = path
        self.model = model

    def maybe_restore(self):
        if not is_main() or not os.path.exists(self.path):  # culprit
            return 0
        state = torch.load(self.path, map_location="cpu")
        self.model.load_state_dict(state["model"])  # culprit
        return state["it"]
