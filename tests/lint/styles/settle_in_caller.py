import torch
import torch.distributed as dist

def start(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, async_op=True)

def step(model, opt):
    start(model)
    torch.cuda.synchronize()
    opt.step()
