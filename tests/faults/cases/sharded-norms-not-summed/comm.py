import torch
import torch.distributed as dist


def gather(x):
    out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def reduce_scatter(x):
    out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.contiguous())
    return out


class GatherFromSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gather(x)

    @staticmethod
    def backward(ctx, grad):
        return reduce_scatter(grad)


class ReduceScatterToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return reduce_scatter(x)

    @staticmethod
    def backward(ctx, grad):
        return gather(grad)
