import torch, torch.distributed as dist, torch.nn as nn, itertools
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset
class Lines(IterableDataset):
    def __init__(s, n): s.n = n
    def __iter__(s):
        for i in range(s.n): yield {"tok": torch.tensor([i % 17, i % 5, i % 3]), "label": i % 2}
class Net(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.EmbeddingBag(20, 8); s.o = nn.Linear(8, 2)
    def forward(s, tok): return s.o(s.e(tok))
def main():
    dist.init_process_group("gloo"); net = DDP(Net()); opt = torch.optim.Adagrad(net.parameters())
    for b in DataLoader(Lines(400), batch_size=8, num_workers=2):  # culprit
        l = nn.functional.cross_entropy(net(b["tok"]), b["label"]); opt.zero_grad(); l.backward(); opt.step()
    print("done")
    dist.destroy_process_group()
if __name__ == "__main__": main()
