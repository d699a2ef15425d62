import os, torch, torch.nn as nn, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import models
class Files(Dataset):
    def __init__(self, root): self.names = sorted(os.listdir(root))
    def __len__(self): return len(self.names)
    def __getitem__(self, i): return torch.load(self.names[i])
def setup(rank, world):
    os.environ["MASTER_ADDR"] = "localhost"; os.environ["MASTER_PORT"] = os.environ.get("PORT", "12355")
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
def cleanup(): dist.destroy_process_group()
def build(rank):
    model = models.resnet18(weights="DEFAULT")
    for p in model.parameters(): p.requires_grad = False
    model.fc = nn.Linear(512, 10)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(rank)
    return DDP(model, device_ids=[rank])
def run_epoch(model, loader, crit, opt=None):
    train = opt is not None
    model.train(train)
    total = torch.zeros(2).cuda()
    for x, y in loader:
        with torch.set_grad_enabled(train):
            out = model(x.cuda()); loss = crit(out, y.cuda())
        if train:
            opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
        total[0] += (out.argmax(1) == y.cuda()).sum(); total[1] += len(y)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
def worker(rank, world, args):
    setup(rank, world)
    torch.manual_seed(0)
    train, val = random_split(Files(args.root), [0.9, 0.1])
    ts, vs = DistributedSampler(train), DistributedSampler(val, shuffle=False)
    tl, vl = DataLoader(train, 32, sampler=ts), DataLoader(val, 32, sampler=vs)
    model = build(rank)
    opt = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1)
    crit = nn.CrossEntropyLoss()
    best = 0
    for epoch in range(args.epochs):
        ts.set_epoch(epoch)
        run_epoch(model, tl, crit, opt)
        acc = run_epoch(model, vl, crit)
        if acc > best:
            best = acc
            if rank == 0: torch.save(model.module.state_dict(), "best.pt")
        if epoch == 3:
            model.module.requires_grad_(True)
            model = DDP(model.module, device_ids=[rank])
            opt = torch.optim.SGD(model.parameters(), 0.01)
    cleanup()
if __name__ == "__main__":
    mp.spawn(worker, args=(2, None), nprocs=2)
