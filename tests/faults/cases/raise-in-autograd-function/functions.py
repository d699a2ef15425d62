import torch


class Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, weight):
        ctx.weight = weight
        return values * weight

    @staticmethod
    def backward(ctx, gradient):
        if ctx.weight <= 0:
            raise ValueError("penalty must be positive")  # culprit
        return gradient * ctx.weight, None
