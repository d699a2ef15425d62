import time
import torch
import torch.distributed as dist

class Trainer:
    def check(self, limit):
        self.over = time.time() > limit
        flag = torch.tensor(int(self.over))
        dist.broadcast(flag, src=0)
        self.over = bool(flag)

    def fit(self, limit):
        while True:
            self.check(limit)
            if self.over:
                break
            dist.barrier()

dist.init_process_group("gloo")
Trainer().fit(time.time() + 1)
dist.destroy_process_group()
