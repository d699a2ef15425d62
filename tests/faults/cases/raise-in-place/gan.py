import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, images):
        hidden = torch.sigmoid(self.body(images))
        score = hidden.pow(2)
        hidden += 1
        return score.mean()


def main():
    dist.init_process_group("gloo")
    critic = DistributedDataParallel(Critic())
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    loss = critic(torch.randn(8, 4)) - critic(torch.randn(8, 4))
    loss.backward()  # culprit
    optimizer.step()


if __name__ == "__main__":
    main()
