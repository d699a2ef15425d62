from torch import nn


def add_adapter(model):
    model.append(nn.Linear(4, 4, bias=False))
