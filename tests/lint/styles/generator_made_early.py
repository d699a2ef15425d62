import torch.distributed as dist
def own(names):
    for name in names[dist.get_rank()::dist.get_world_size()]:
        yield name
stream = own(["a", "b", "c", "d"])
dist.init_process_group("gloo")
print(list(stream))
dist.destroy_process_group()
