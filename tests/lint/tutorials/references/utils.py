import os, torch, torch.distributed as dist
from collections import defaultdict, deque
class SmoothedValue:
    def __init__(self): self.total = 0; self.count = 0
    def synchronize_between_processes(self):
        t = reduce_across_processes([self.count, self.total])
        t = t.tolist(); self.count, self.total = int(t[0]), t[1]
class MetricLogger:
    def __init__(self): self.meters = defaultdict(SmoothedValue)
    def log_every(self, iterable, print_freq, header=None):
        for obj in iterable:
            yield obj
    def synchronize_between_processes(self):
        for m in self.meters.values(): m.synchronize_between_processes()
def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()
def get_rank(): return dist.get_rank() if is_dist_avail_and_initialized() else 0
def is_main_process(): return get_rank() == 0
def save_on_master(*args, **kwargs):
    if is_main_process(): torch.save(*args, **kwargs)
def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"]); args.world_size = int(os.environ["WORLD_SIZE"]); args.gpu = int(os.environ["LOCAL_RANK"])
    else:
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(backend="nccl", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    dist.barrier()
class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device="cpu"):
        super().__init__(model, device)
def reduce_across_processes(val):
    t = torch.tensor(val, device="cuda")
    dist.barrier(); dist.all_reduce(t)
    return t
