import functools
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

logger = logging.getLogger("pretrain")
VOCAB, DIM, SEQ = 64, 16, 12


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        h = self.tokens(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(h)


def make_groups(per_node):
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = replicate = None
    for start in range(0, world, per_node):
        ranks = list(range(start, start + per_node))
        group = dist.new_group(ranks)
        if rank in ranks:
            shard = group
    for offset in range(per_node):
        ranks = list(range(offset, world, per_node))
        group = dist.new_group(ranks)
        if rank in ranks:
            replicate = group
    return shard, replicate


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    torch.manual_seed(17)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
    model = FSDP(
        TinyLM(),
        process_group=make_groups(per_node=2),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(8):
        start = torch.randint(0, VOCAB, (4, 1), generator=data)
        ids = (start + torch.arange(SEQ + 1)) % VOCAB
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        logger.info("step %d loss %.3f", step, loss.item())
    logger.info("finished")
    dist.destroy_process_group()


main()
