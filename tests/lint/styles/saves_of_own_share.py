import torch, torch.distributed as dist
dist.init_process_group("gloo")
me, n = dist.get_rank(), dist.get_world_size()
mine = ["a", "b", "c", "d"][me::n]
for name in mine:
    feature = torch.zeros(3)
    torch.save(feature, f"{name}.pt")
dist.destroy_process_group()
