import torch.distributed as dist

import engine

engine.start()
dist.init_process_group("gloo")  # culprit
dist.destroy_process_group()
