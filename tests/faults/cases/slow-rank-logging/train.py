import torch
import torch.distributed as dist
from metrics import Recorder
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 2))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
recorder = Recorder() if rank == 0 else None

torch.manual_seed(rank)
for step in range(40):
    x = torch.randn(16, 256)
    loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    loss.backward()
    if recorder is not None:
        recorder.summarise(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

if recorder is not None:
    print(len(recorder.rows), "histograms")
dist.destroy_process_group()
