import asyncio
import torch.distributed as dist

async def lead(lines):
    for line in lines:
        await asyncio.to_thread(dist.broadcast_object_list, [line], 0)

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    asyncio.run(lead(["a", "b"]))
else:
    for _ in range(2):
        dist.broadcast_object_list([None], 0)
dist.destroy_process_group()
