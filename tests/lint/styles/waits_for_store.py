import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.TCPStore(os.environ["MASTER_ADDR"], 29777, dist.get_world_size(), rank == 0)
if rank == 0:
    torch.save(torch.zeros(3), "a.pt")
    store.set("saved", "yes")
store.wait(["saved"])
print(torch.load("a.pt", map_location="cpu"))
dist.destroy_process_group()
