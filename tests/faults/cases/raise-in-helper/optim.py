import torch


def build(parameters, config):
    return torch.optim.SGD(parameters, lr=config["lr"], weight_decay=decay(config))


def decay(config):
    value = config["weight_decay"]  # culprit
    return float(value)
