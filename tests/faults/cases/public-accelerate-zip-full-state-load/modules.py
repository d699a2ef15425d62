import torch
import torch.nn as nn
import torch.nn.functional as F

BLOCK = 16


class QuantLinear(nn.Module):
    """Frozen int8 weight with per-block scales plus a trainable low-rank adapter."""

    def __init__(self, dim_in, dim_out, rank=4):
        super().__init__()
        weight = torch.randn(dim_out, dim_in) * dim_in**-0.5
        blocks = weight.reshape(-1, BLOCK)
        self.absmax = blocks.abs().amax(dim=1, keepdim=True)
        quant = (blocks / self.absmax * 127).round().reshape(dim_out, dim_in)
        self.weight = nn.Parameter(quant, requires_grad=False)
        self.lora_A = nn.Parameter(torch.randn(rank, dim_in) * 0.02)
        self.lora_B = nn.Parameter(torch.zeros(dim_out, rank))

    def forward(self, x):
        w = (self.weight.reshape(-1, BLOCK) / 127 * self.absmax).reshape(self.weight.shape)
        return F.linear(x, w) + F.linear(F.linear(x, self.lora_A), self.lora_B)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "weight"] = self.weight if keep_vars else self.weight.detach()
        if self.weight.device.type != "meta":
            destination[prefix + "weight.absmax"] = self.absmax
        for name in ("lora_A", "lora_B"):
            p = getattr(self, name)
            destination[prefix + name] = p if keep_vars else p.detach()
