import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
args = parser.parse_args()
dist.init_process_group("gloo")
args.saves = dist.get_rank() == 0
if args.saves:
    torch.save(torch.zeros(3), "a.pt")
dist.destroy_process_group()
