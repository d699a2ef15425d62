import torch
import torch.distributed as dist

class Comm:
    def sum(self, tensor):
        dist.all_reduce(tensor)
        return tensor

class Trainer:
    def __init__(self):
        self.comm = Comm()

    def report(self, loss):
        if dist.get_rank() == 0:
            print(self.comm.sum(loss).item())
        else:
            dist.all_reduce(loss)

dist.init_process_group("gloo")
Trainer().report(torch.ones(1))
dist.destroy_process_group()
