import os, copy, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
import torchvision
class Head(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(2, 2)
    def forward(self, x): return self.l(x)
    def l2(self): return sum(p.pow(2).sum() for p in self.parameters())
def concat_all_gather(tensor):
    out = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
    with torch.no_grad():
        dist.all_gather(out, tensor)
    return torch.cat(out, dim=0)
class Trainer:
    def __init__(self, cfg):
        self.rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.rank)
        self.student = Head().cuda(self.rank)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.student = DDP(self.student, device_ids=[self.rank])
        self.opt = torch.optim.AdamW(self.student.parameters())
        ds = torchvision.datasets.MNIST("x")
        self.sampler = DistributedSampler(ds, shuffle=True, seed=1)
        self.loader = DataLoader(ds, 32, sampler=self.sampler, drop_last=True)
        self.cfg = cfg
    def loss(self, x):
        z = self.student(x)
        with torch.no_grad():
            t = self.teacher(x)
        negatives = concat_all_gather(t)
        return F.mse_loss(z, t) + (z @ negatives.t()).logsumexp(1).mean() + 1e-4 * self.student.module.l2()
    def ema(self):
        for p, q in zip(self.student.module.parameters(), self.teacher.parameters()):
            q.data.mul_(0.99).add_(p.data, alpha=0.01)
    def run(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for i, (x, _) in enumerate(self.loader):
                last = (i + 1) % self.cfg.accum == 0
                if not last:
                    with self.student.no_sync():
                        self.loss(x).backward()
                    continue
                self.loss(x).backward()
                self.opt.step(); self.opt.zero_grad()
                self.ema()
            if self.rank == 0:
                torch.save(self.student.module.state_dict(), "a.pt")
            dist.barrier()
def main():
    dist.init_process_group("nccl")
    Trainer(None).run()
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
