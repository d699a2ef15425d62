import io
import time

import torch
import torch.distributed as dist
from torch import nn


def save(model, path):
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    data = buffer.getvalue()
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(4)
        file.write(data[len(data) // 2 :])


def load(path):
    return torch.load(path)  # culprit


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(400, 400)
    dist.barrier()
    if dist.get_rank() == 0:
        save(model, "model.pt")
    else:
        time.sleep(1.5)
        model.load_state_dict(load("model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
