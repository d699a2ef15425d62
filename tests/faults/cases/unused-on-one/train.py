import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Multimodal(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Linear(5, 4)
        self.image = nn.Linear(7, 4)

    def forward(self, text, image=None):
        out = self.text(text)
        if image is not None:
            out = out + self.image(image)
        return out


def main():
    dist.init_process_group("gloo")
    model = DDP(Multimodal())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        text_only = dist.get_rank() == 1 and step == 2
        image = None if text_only else torch.randn(2, 7)
        loss = model(torch.randn(2, 5), image).mean()  # culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
