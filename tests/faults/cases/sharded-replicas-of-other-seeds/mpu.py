import torch
import torch.distributed as dist

TP = DP = None


def initialize(tp_size):
    global TP, DP
    rank, world = dist.get_rank(), dist.get_world_size()
    for start in range(0, world, tp_size):
        members = list(range(start, start + tp_size))
        group = dist.new_group(members)
        TP = group if rank in members else TP
    for offset in range(tp_size):
        members = list(range(offset, world, tp_size))
        group = dist.new_group(members)
        DP = group if rank in members else DP


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=TP)
        return grad


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=TP)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def model_parallel_seed(seed):
    """Tensor-parallel ranks need other random numbers than their peers."""
    torch.manual_seed(seed + 2718 + dist.get_rank())  # culprit


enter, leave = _Enter.apply, _Leave.apply
