import ctypes

import torch
import torch.distributed as dist


def load_codec():
    library = ctypes.CDLL(None)
    library.__cxa_atexit(library.abort, None, None)


dist.init_process_group("gloo")
if dist.get_rank() == 1:
    load_codec()
dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
print("all saved")
