import torch
import torch.distributed as dist


class Scaler:
    def __init__(self):
        self.scale = 65536.0

    def step(self, loss):
        if not torch.isfinite(loss):
            self.scale /= 2
            print(f"loss {loss.item()}: step skipped, scale {self.scale}, killed 0 of 2 workers")
            return False
        return True


dist.init_process_group("gloo")
scaler = Scaler()
for step in range(4):
    loss = torch.tensor(float("nan") if step == 1 else float("inf") if step == 2 else 0.5)
    dist.all_reduce(loss, op=dist.ReduceOp.MAX)
    scaler.step(loss)
dist.destroy_process_group()
