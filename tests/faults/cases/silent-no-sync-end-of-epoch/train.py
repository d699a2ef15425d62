import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import *
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo"); r = dist.get_rank()
X = torch.randn(220, 6); ds = TensorDataset(X, X.mean(1)); sam = DistributedSampler(ds, shuffle=True); dl = DataLoader(ds, batch_size=10, sampler=sam)
net = DDP(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))); opt = torch.optim.SGD(net.parameters(), .05, momentum=.9)
K = 4
for ep in range(4):
    sam.set_epoch(ep)
    for n, (a, b) in enumerate(dl, 1):
        if n % K:
            with net.no_sync(): (nn.functional.mse_loss(net(a)[:, 0], b) / K).backward()
        else: (nn.functional.mse_loss(net(a)[:, 0], b) / K).backward()
        if n % K == 0 or n == len(dl):
            opt.step()  # culprit
            opt.zero_grad()
if r == 0: print("done")
dist.destroy_process_group()
