import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class MetricLogger:
    def __init__(self, mesh):
        self.mesh = mesh
        self.enabled = mesh.get_rank() == 0
        self.started = time.perf_counter()
        self.lines = []

    def describe(self, model):
        if not self.enabled:
            return
        local = sum(p.to_local().numel() for p in model.parameters())
        total = sum(p.numel() for p in model.parameters())
        print(f"{total} parameters, {local} on this rank")

    def log(self, step, loss, norm):
        loss = loss.detach().clone()
        dist.all_reduce(loss, op=dist.ReduceOp.SUM, group=self.mesh.get_group())
        if self.enabled:
            self.lines.append(
                {
                    "step": step,
                    "loss/train": round(loss.item() / self.mesh.size(), 4),
                    "grad_norm": round(float(norm), 4),
                    "steps_per_second": step / (time.perf_counter() - self.started),
                }
            )

    def close(self):
        if self.enabled:
            with open("metrics.jsonl", "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in self.lines)
            print(self.lines[-1])


def main():
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    for module in model[::2]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    logger = MetricLogger(mesh)
    logger.describe(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stream = torch.Generator().manual_seed(mesh.get_rank())
    for step in range(1, 11):
        x = torch.randn(12, 16, generator=stream)
        loss = nn.functional.huber_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        logger.log(step, loss, norm)
    logger.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
