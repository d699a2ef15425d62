import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
def mlp(i, o): return nn.Sequential(nn.Linear(i, 24), nn.LeakyReLU(.2), nn.Linear(24, o))
class GAN:
    def __init__(self):
        torch.manual_seed(3); self.g = DDP(mlp(4, 6)); self.d = mlp(6, 1)
        self.og = torch.optim.Adam(self.g.parameters(), 2e-4, betas=(.5, .9)); self.od = torch.optim.Adam(self.d.parameters(), 2e-4, betas=(.5, .9))
    def step(self, real):
        b = len(real); bce = nn.functional.binary_cross_entropy_with_logits
        fake = self.g(torch.randn(b, 4))
        ld = bce(self.d(real), torch.ones(b, 1)) + bce(self.d(fake.detach()), torch.zeros(b, 1))
        self.od.zero_grad(); ld.backward()
        self.od.step()  # culprit
        lg = bce(self.d(fake), torch.ones(b, 1)); self.og.zero_grad(); lg.backward(); self.og.step()
        return ld.item(), lg.item()
def main():
    dist.init_process_group("gloo"); torch.manual_seed(11)
    ds = TensorDataset(torch.randn(320, 6)); sp = DistributedSampler(ds); gan = GAN()
    for e in range(3):
        sp.set_epoch(e)
        for (x,) in DataLoader(ds, 16, sampler=sp): out = gan.step(x)
    print("done", out); dist.destroy_process_group()
main()
