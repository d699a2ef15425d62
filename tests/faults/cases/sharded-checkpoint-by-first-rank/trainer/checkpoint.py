import os
import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict


def is_main_process():
    return dist.get_rank() == 0


class Checkpointer:
    def __init__(self, folder, interval, keep=2):
        self.folder, self.interval, self.keep = folder, interval, keep

    def maybe_save(self, step, model, optimizer):
        if step % self.interval != 0:
            return
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        if is_main_process():
            dcp.save(state, checkpoint_id=os.path.join(self.folder, str(step)))  # culprit
            self.purge(step)
        dist.barrier()

    def purge(self, step):
        old = os.path.join(self.folder, str(step - self.keep * self.interval))
        shutil.rmtree(old, ignore_errors=True)
