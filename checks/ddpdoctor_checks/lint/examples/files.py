"""Examples of checkpoints, directories and downloads."""

_START = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = torch.nn.Linear(2, 2)
"""
_END = "dist.destroy_process_group()\n"
_WRAPPED = f"{_START}wrapped = torch.nn.parallel.DistributedDataParallel(model.to(local_rank))\n"

FILES = {
    "CKP001": (
        f"{_START}torch.save(model.state_dict(), 'last.pt')\n{_END}",
        f"{_START}if rank == 0:\n    torch.save(model.state_dict(), 'last.pt')\n{_END}",
    ),
    "CKP002": (
        f"""{_START}\
if rank == 0:
    torch.save(model.state_dict(), 'last.pt')
model.load_state_dict(torch.load('last.pt', map_location='cpu'))
{_END}""",
        f"""{_START}\
if rank == 0:
    torch.save(model.state_dict(), 'last.pt')
dist.barrier()
model.load_state_dict(torch.load('last.pt', map_location='cpu'))
{_END}""",
    ),
    "CKP003": (
        f"{_START}model.load_state_dict(torch.load('start.pt'))\n{_END}",
        f"{_START}model.load_state_dict(torch.load('start.pt', map_location='cpu'))\n{_END}",
    ),
    "CKP004": (
        f"""{_WRAPPED}\
if rank == 0:
    torch.save(wrapped.state_dict(), 'last.pt')
dist.barrier()
fresh = torch.nn.Linear(2, 2)
fresh.load_state_dict(torch.load('last.pt', map_location='cpu'))
{_END}""",
        f"""{_WRAPPED}\
if rank == 0:
    torch.save(wrapped.module.state_dict(), 'last.pt')
dist.barrier()
fresh = torch.nn.Linear(2, 2)
fresh.load_state_dict(torch.load('last.pt', map_location='cpu'))
{_END}""",
    ),
    "CKP005": (
        f"{_START}os.makedirs('runs')\n{_END}",
        f"{_START}os.makedirs('runs', exist_ok=True)\n{_END}",
    ),
    "DAT008": (
        f"""\
import torchvision
{_START}\
images = torchvision.datasets.MNIST('data', download=True)
{_END}""",
        f"""\
import torchvision
{_START}\
if rank == 0:
    torchvision.datasets.MNIST('data', download=True)
dist.barrier()
images = torchvision.datasets.MNIST('data')
{_END}""",
    ),
}
