"""Examples of how ranks are started and meet."""

LAUNCHING = {
    "ENV007": (
        """\
import argparse
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
dist.init_process_group("nccl")
dist.destroy_process_group()
""",
        """\
import os
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
dist.destroy_process_group()
""",
    ),
    "ENV014": (
        """\
import os
import torch.distributed as dist

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
dist.init_process_group("nccl")
dist.destroy_process_group()
""",
        """\
# To find the line of a CUDA error: ddpdoctor run --blocking --nproc 2 train.py
import torch.distributed as dist

dist.init_process_group("nccl")
dist.destroy_process_group()
""",
    ),
    "ENV017": (
        """\
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.destroy_process_group()

mp.spawn(work, nprocs=2)
""",
        """\
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
""",
    ),
    "ENV019": (
        """\
import torch.distributed as dist

rank = dist.get_rank()
dist.init_process_group("gloo")
dist.destroy_process_group()
""",
        """\
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.destroy_process_group()
""",
    ),
    "NET009": (
        """\
import os
import torch.distributed as dist

os.environ["MASTER_PORT"] = "99999"
dist.init_process_group("gloo")
dist.destroy_process_group()
""",
        """\
import os
import torch.distributed as dist

os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("gloo")
dist.destroy_process_group()
""",
    ),
    "NET010": (
        """\
import torch.distributed as dist

def start(rank):
    dist.init_process_group("gloo", "file:///shared/meet", rank=rank, world_size=2)
    dist.destroy_process_group()
""",
        """\
import os
import torch.distributed as dist

def start(rank):
    path = f"/shared/meet-{os.environ['SLURM_JOB_ID']}"
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    dist.destroy_process_group()
""",
    ),
}
