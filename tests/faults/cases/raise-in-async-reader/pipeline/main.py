import asyncio

import torch
import torch.distributed as dist

from pipeline.reader import batches


async def train():
    async for batch in batches(dist.get_rank()):
        await asyncio.to_thread(dist.all_reduce, torch.tensor(float(len(batch))))


dist.init_process_group("gloo")
asyncio.run(train())
dist.destroy_process_group()
