import os, torch, torch.nn as nn, torch.distributed as dist, torchvision.datasets as dset, torchvision.transforms as transforms
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.main = nn.Sequential(nn.ConvTranspose2d(100, 64, 4), nn.BatchNorm2d(64))
    def forward(self, x): return self.main(x)
class D(nn.Module):
    def __init__(self):
        super().__init__(); self.main = nn.Conv2d(3, 1, 4)
    def forward(self, x): return self.main(x)
def train(rank, epochs):
    ds = dset.CIFAR10('x', transform=transforms.ToTensor())
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=64, sampler=sampler, drop_last=True)
    netG, netD = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(G()).to(rank), device_ids=[rank]), DDP(D().to(rank), device_ids=[rank])
    oD, oG = torch.optim.Adam(netD.parameters()), torch.optim.Adam(netG.parameters())
    crit = nn.BCELoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for real, _ in dl:
            netD.zero_grad()
            label = torch.full((64,), 1.0)
            errD_real = crit(netD(real), label)
            errD_real.backward()
            fake = netG(torch.randn(64, 100, 1, 1))
            errD_fake = crit(netD(fake.detach()), label * 0)
            errD_fake.backward()
            oD.step()
            for p in netD.parameters(): p.requires_grad = False
            netG.zero_grad()
            errG = crit(netD(fake), label)
            errG.backward()
            oG.step()
            for p in netD.parameters(): p.requires_grad = True
        if rank == 0:
            torch.save(netG.module.state_dict(), 'g.pt')
def main():
    rank = int(os.environ['LOCAL_RANK'])
    dist.init_process_group('nccl')
    torch.cuda.set_device(rank)
    try:
        train(rank, 5)
    finally:
        dist.destroy_process_group()
if __name__ == '__main__':
    main()
