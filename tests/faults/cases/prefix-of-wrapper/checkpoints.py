import torch
import torch.distributed as dist


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)


def load(model, path):
    model.load_state_dict(torch.load(path, map_location="cpu"))  # culprit
