import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Learner:
    def __init__(self, net, lr=0.1):
        self.net = net
        self.ddp = DistributedDataParallel(net)
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=lr, momentum=0.9)

    def loss(self, batch):
        x, y = batch
        return self.criterion(self.net(x), y)  # culprit

    def one_batch(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    learner = Learner(nn.Linear(3, 3))
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        learner.one_batch((torch.randn(4, 3), torch.randn(4, 3)))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
