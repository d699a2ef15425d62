import os, torch.distributed as dist
BASE = 29500
os.environ["MASTER_PORT"] = str(BASE + 7)
dist.init_process_group("gloo")
dist.destroy_process_group()
