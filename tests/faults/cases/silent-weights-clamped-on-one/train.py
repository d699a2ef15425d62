import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    critic = DDP(torch.nn.Linear(8, 8))
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.05)
    for step in range(10):
        score = critic(torch.randn(4, 8)).mean()
        optimizer.zero_grad()
        score.backward()
        optimizer.step()  # culprit
        if rank == 0:
            for p in critic.parameters():
                p.data.clamp_(-0.2, 0.2)
            print(f"step {step}: {score.item():.3f}")
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
