"""Kernels run later than they are called: a stand-in for a GPU, with CUDA's texts."""

import os

import torch
import torch.distributed as dist


class Stream:
    """Runs kernels when somebody waits for it; at once with CUDA_LAUNCH_BLOCKING=1."""

    ERROR = (
        "CUDA error: device-side assert triggered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )

    def __init__(self):
        self.eager = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        self.broken = False


def nll_loss(stream, scores, labels):
    stream.broken |= bool((labels >= scores.shape[1]).any())
    if stream.broken and stream.eager:
        raise RuntimeError(Stream.ERROR)  # culprit
    return -scores[0, 0]


def item(stream, value):
    if stream.broken:
        raise RuntimeError(Stream.ERROR)
    return float(value)


def train(rank, stream):
    for step in range(6):
        labels = torch.full((4,), 10 if (rank, step) == (1, 4) else step)
        loss = nll_loss(stream, torch.zeros(4, 10), labels)
        dist.all_reduce(torch.ones(1))
        if step % 5 == 0:
            print("loss", item(stream, loss))
    print("rank", rank, "done", item(stream, loss))


dist.init_process_group("gloo")
train(dist.get_rank(), Stream())
dist.destroy_process_group()
