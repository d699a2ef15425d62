import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from torch.utils.data import DataLoader

from kit import Kit


def main():
    kit = Kit()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    net = torch.nn.Linear(4, 2)
    model, optimizer, loader = kit.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(data, batch_size=4, shuffle=True)
    )
    for epoch in range(3):
        for x, y in loader:  # culprit
            optimizer.zero_grad()
            kit.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
    if kit.is_main:
        print("done")
    kit.close()


main()
