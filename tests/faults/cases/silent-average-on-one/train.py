import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
        self.average = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.average.load_state_dict(self.model.module.state_dict())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        torch.manual_seed(rank)

    def train_step(self, x):
        with torch.no_grad():
            anchor = self.average(x)  # culprit
        out = self.model(x)
        loss = (out - x[:, :4]).square().mean() + 0.1 * (out - anchor).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.rank == 0:  # saves time on the others
            with torch.no_grad():
                for slow, fast in zip(self.average.parameters(), self.model.parameters()):
                    slow.lerp_(fast, 0.05)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for _ in range(30):
        trainer.train_step(torch.randn(16, 8))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
