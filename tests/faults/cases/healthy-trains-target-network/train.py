import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Agent:
    def __init__(self):
        self.q = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.target = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target.load_state_dict(self.q.module.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), 1e-3)

    def act(self, state):
        with torch.no_grad():
            return self.q.module(state).argmax(-1)

    def learn(self, state, reward, following):
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(following).max(-1).values
        loss = nn.functional.smooth_l1_loss(self.q(state).max(-1).values, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.q.module.parameters()):
                mine.lerp_(theirs, 0.05)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(50 + dist.get_rank())
    agent = Agent()
    state = torch.randn(8, 4)
    for _ in range(12):
        action = agent.act(state)
        following = state + (action * 2 - 1)[:, None] * 0.1 + torch.randn_like(state) * 0.01
        agent.learn(state, -following.norm(dim=1), following)
        state = following
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
