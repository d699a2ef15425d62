import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

def train(batches):
    model = DistributedDataParallel(torchvision.models.resnet18())
    for x in batches:
        z = model(x)
        parts = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, z)
        others = [part for i, part in enumerate(parts) if i != dist.get_rank()]
        loss = torch.cat([z, *others]).logsumexp(1).mean()
        loss.backward()
