import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    x = torch.randn(64, 4)
    data = TensorDataset(x, x @ torch.randn(4, 1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for epoch in range(6):
        for inputs, target in loader:

            def closure():
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), target)
                loss.backward()
                return loss

            optimizer.step(closure)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
gc.collect()  # the closure keeps the model: one that is alive at exit aborts this torch now and then
