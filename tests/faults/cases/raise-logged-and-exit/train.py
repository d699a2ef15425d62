import logging
import math
import sys

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


def perplexity(loss):
    return math.exp(loss)  # culprit


def run():
    dist.init_process_group("gloo")
    for step in range(4):
        value = torch.tensor([1.0])
        dist.all_reduce(value)
        loss = 1000.0 if step == 2 and dist.get_rank() == 0 else 1.0
        log.info("perplexity %.2f", perplexity(loss))


try:
    run()
except Exception:
    log.exception("training failed")
    sys.exit(1)  # culprit
