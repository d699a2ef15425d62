import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.stem(x).relu())


def freeze(module):
    for parameter in module.parameters():
        parameter.requires_grad = False  # culprit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Classifier(4))
    freeze(model.module.stem)  # culprit
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(4):
        inputs, labels = torch.randn(8, 16), torch.randint(4, (8,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
