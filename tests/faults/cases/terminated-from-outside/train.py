import os
import subprocess
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -TERM {os.getpid()}"], start_new_session=True)
for _ in range(100):
    dist.all_reduce(torch.ones(2))
    time.sleep(0.1)
dist.destroy_process_group()
