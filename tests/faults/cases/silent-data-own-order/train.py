import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
def run():
    dist.init_process_group("gloo")
    d = TensorDataset(torch.arange(256.).repeat(4, 1).t(), torch.arange(256.) % 2)
    dl = DataLoader(d, batch_size=16, shuffle=True, num_workers=1)
    net = DDP(nn.Linear(4, 1)); opt = torch.optim.SGD(net.parameters(), 1e-6)
    for e in range(3):
        for x, y in dl:  # culprit
            l = nn.functional.binary_cross_entropy_with_logits(net(x / 256)[:, 0], y); opt.zero_grad(); l.backward(); opt.step()
    print("done"); dist.destroy_process_group()
if __name__ == "__main__": run()
