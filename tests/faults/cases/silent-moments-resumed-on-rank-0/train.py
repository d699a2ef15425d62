import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Session:
    def __init__(self, rank, saved=None):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(5, 3)
        if saved:
            self.net.load_state_dict(saved["net"])
        self.model = DDP(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        if saved and rank == 0:
            self.optimizer.load_state_dict(saved["optimizer"])  # culprit

    def train(self, steps):
        for _ in range(steps):
            loss = self.model(torch.randn(8, 5)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def save(self):
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first = Session(rank)
    first.train(6)
    Session(rank, first.save()).train(9)
    if rank == 0:
        print("resumed")
    dist.destroy_process_group()


main()
