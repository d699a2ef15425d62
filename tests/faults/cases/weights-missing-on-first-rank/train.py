import torch
import torch.distributed as dist
from torch import nn


def load_pretrained(model, path):
    state = torch.load(path, map_location="cpu")  # culprit
    model.load_state_dict(state)


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    if dist.get_rank() == 0:
        load_pretrained(model, "weights/backbone.pt")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
