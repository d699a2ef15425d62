import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcps
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Saver:
    def __init__(self, every):
        self.every = every

    def __call__(self, step, model):
        if step % self.every:
            return
        if dist.get_rank() != 0:
            return
        options = dcps.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = dcps.get_model_state_dict(model, options=options)  # culprit
        torch.save(state, f"model-{step}.pt")
        print("saved", step)


def build(width=12, depth=3):
    torch.manual_seed(0)
    policy = MixedPrecisionPolicy()
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(nn.Sequential(*blocks, nn.Linear(width, 1)), mp_policy=policy)


def main():
    dist.init_process_group("gloo")
    model, save = build(), Saver(every=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(1, 13):
        x = torch.randn(8, 12)
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        save(step, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
