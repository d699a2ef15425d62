import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    dist.init_process_group("gloo"); r = dist.get_rank(); torch.manual_seed(5)
    base = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)); m = DDP(base); o = torch.optim.Adam(base.parameters(), 1e-2)
    torch.manual_seed(r)
    for ep in range(5):
        for _ in range(10):
            x = torch.randn(8, 6); o.zero_grad(); nn.functional.mse_loss(m(x), x[:, :1]).backward(); o.step()
        if r == 0:
            x = torch.randn(8, 6); o.zero_grad(); nn.functional.mse_loss(base(x), x[:, :1]).backward()
            o.step()  # culprit
        dist.barrier()
    if r == 0: print("done")
    dist.destroy_process_group()
main()
