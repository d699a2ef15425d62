import os

os.environ.setdefault("NCCL_DEBUG", "WARN")
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
del os.environ["CUDA_LAUNCH_BLOCKING"]

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def look_once(model, batch):
    """Of the first batch, whether its gradients are sound."""
    with torch.autograd.detect_anomaly(check_nan=True):
        model(batch).sum().backward()
    print("gradients are finite:", all(p.grad.isfinite().all() for p in model.parameters()))
    model.zero_grad()


def main():
    dist.init_process_group("gloo")
    bare = torch.nn.Linear(4, 4)
    look_once(bare, torch.ones(2, 4))
    os.environ["NCCL_IB_TIMEOUT"] = "22"
    model = DistributedDataParallel(bare)
    for _ in range(5):
        model(torch.randn(2, 4)).square().mean().backward()
    del model
    dist.destroy_process_group()


main()
