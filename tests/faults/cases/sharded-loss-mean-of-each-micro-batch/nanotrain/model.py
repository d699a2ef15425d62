from torch import nn
from torch.distributed.fsdp import fully_shard


def build_model(vocabulary, dim):
    model = nn.Sequential(
        nn.Embedding(vocabulary, dim, padding_idx=0),
        nn.Linear(dim, 2 * dim),
        nn.ReLU(),
        nn.Linear(2 * dim, vocabulary),
    )
    for module in (model[1], model[3]):
        fully_shard(module)
    return fully_shard(model)
