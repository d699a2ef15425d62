import torch.distributed as dist


class ActivationMonitor:
    def __init__(self):
        self.rows = []

    def attach(self, model, names):
        for name, module in model.named_modules():
            if name in names:
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            scale = output.detach().abs().mean()
            dist.all_reduce(scale, op=dist.ReduceOp.SUM)  # culprit
            self.rows.append((name, scale.item() / dist.get_world_size()))

        return hook
