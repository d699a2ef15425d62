import torch
import torch.distributed as dist
import torch.nn as nn

DIM, MICRO_BATCH, NUM_MICRO = 16, 4, 6
TAG_FWD, TAG_BWD = 1, 2


class PipeStage:
    def __init__(self, rank, world):
        torch.manual_seed(40 + rank)
        self.rank, self.first, self.last = rank, rank == 0, rank == world - 1
        self.module = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
        self.inputs, self.outputs, self.losses = [], [], []

    def recv_forward(self):
        if self.first:
            return None
        buf = torch.empty(MICRO_BATCH, DIM)
        dist.recv(buf, src=self.rank - 1, tag=TAG_FWD)
        return buf.requires_grad_()

    def send_forward(self, out):
        if not self.last:
            dist.send(out.detach(), dst=self.rank + 1, tag=TAG_FWD)  # culprit

    def recv_backward(self):
        if self.last:
            return None
        buf = torch.empty(MICRO_BATCH, DIM)
        dist.recv(buf, src=self.rank + 1, tag=TAG_BWD)
        return buf

    def send_backward(self, grad):
        if not self.first:
            dist.send(grad, dst=self.rank - 1, tag=TAG_BWD)  # culprit

    def forward(self, x, target):
        out = self.module(x)
        if self.last:
            out = (out - target).pow(2).mean() / NUM_MICRO
            self.losses.append(out.detach())
        self.inputs.append(x)
        self.outputs.append(out)
        return out

    def backward(self, grad):
        x, out = self.inputs.pop(0), self.outputs.pop(0)
        out.backward(grad)
        return None if self.first else x.grad


def run_1f1b(stage, world, micro_inputs, micro_targets):
    warmup = min(world - stage.rank - 1, NUM_MICRO)
    fwd = 0

    def step_forward(x):
        nonlocal fwd
        out = stage.forward(micro_inputs[fwd] if stage.first else x, micro_targets[fwd])
        fwd += 1
        return out

    for _ in range(warmup):
        stage.send_forward(step_forward(stage.recv_forward()))

    x = stage.recv_forward() if fwd < NUM_MICRO else None
    for i in range(NUM_MICRO - warmup):
        out = step_forward(x)
        stage.send_forward(out)  # culprit
        grad_in = stage.backward(stage.recv_backward())
        stage.send_backward(grad_in)  # culprit
        if i < NUM_MICRO - warmup - 1:
            x = stage.recv_forward()

    for _ in range(warmup):
        stage.send_backward(stage.backward(stage.recv_backward()))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipeStage(rank, world)
    opt = torch.optim.SGD(stage.module.parameters(), lr=0.1)

    gen = torch.Generator().manual_seed(0)
    for step in range(5):
        x = torch.randn(NUM_MICRO, MICRO_BATCH, DIM, generator=gen)
        opt.zero_grad()
        run_1f1b(stage, world, x, x.roll(1, dims=-1))
        opt.step()
        if stage.last:
            print(f"step {step} loss {torch.stack(stage.losses).sum().item():.5f}", flush=True)
            stage.losses.clear()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
