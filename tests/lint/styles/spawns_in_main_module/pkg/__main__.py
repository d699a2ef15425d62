import torch.multiprocessing as mp
from pkg.work import work
mp.spawn(work, args=(2,), nprocs=2)
