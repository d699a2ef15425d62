import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
class Lora(nn.Module):
    def __init__(s, base, r=2):
        super().__init__(); s.base = base; s.a = nn.Parameter(torch.randn(r, base.in_features) * .1); s.b = nn.Parameter(torch.zeros(base.out_features, r))
    def forward(s, x): return s.base(x) + x @ s.a.t() @ s.b.t()
def main():
    dist.init_process_group("gloo"); r = dist.get_rank()
    net = nn.ModuleDict({"enc": nn.Linear(8, 8), "dec": nn.Linear(8, 2)})
    class Whole(nn.Module):
        def __init__(s): super().__init__(); s.net = net
        def forward(s, x): return s.net["dec"](torch.relu(s.net["enc"](x)))
    m = DistributedDataParallel(Whole())  # culprit
    m.module.net["enc"] = Lora(m.module.net["enc"])
    params = [p for n, p in m.named_parameters() if n.endswith((".a", ".b")) or "dec" in n]
    o = torch.optim.AdamW(params, 1e-2)
    g = torch.Generator().manual_seed(50 + r)
    for i in range(20):
        x = torch.randn(8, 8, generator=g); l = F.mse_loss(m(x), x[:, :2]); o.zero_grad(); l.backward(); o.step()
    print("done", l.item()); dist.destroy_process_group()
main()
