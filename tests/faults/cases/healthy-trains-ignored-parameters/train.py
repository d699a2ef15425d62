import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(10, 4)
        self.score = nn.Linear(4, 1)

    def forward(self, users):
        return self.score(self.users(users))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = Recommender()
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["users.weight"])
    model = DDP(net)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for _ in range(9):
        loss = (model(torch.randint(10, (6,))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
