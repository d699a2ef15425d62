import torch


class Checkpoints:
    def __init__(self, path):
        self.path = path

    def save(self, model):
        torch.save({"model": model.state_dict()}, self.path)

    def load(self, model):
        model.load_state_dict(torch.load(self.path)["model"])  # culprit
