import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
net = torch.nn.Linear(6, 3)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(20):
    x = torch.randn(4, 6) + rank
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 13:
        flat = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), net.parameters())
if rank == 0:
    print("done")
dist.destroy_process_group()
