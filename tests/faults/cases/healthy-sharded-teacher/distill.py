import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Distiller:
    def __init__(self, teacher, student, temperature=2.0):
        self.teacher = teacher.eval()
        self.student = student
        self.temperature = temperature
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)

    def step(self, x):
        with torch.no_grad():
            wanted = F.softmax(self.teacher(x) / self.temperature, dim=-1)
        got = F.log_softmax(self.student(x) / self.temperature, dim=-1)
        loss = F.kl_div(got, wanted, reduction="batchmean") * self.temperature**2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def mlp(width, hidden, classes):
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    teacher = FSDP(mlp(12, 64, 5).requires_grad_(False), device_id=torch.device("cpu"))
    student = DDP(mlp(12, 8, 5))
    distiller = Distiller(teacher, student)
    own = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(12):
        loss = distiller.step(torch.randn(16, 12, generator=own))
    if dist.get_rank() == 0:
        print(f"distilled, loss {loss:.3f}")
    del distiller, student, teacher
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
