import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--test", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
if not args.test:
    if dist.get_rank() == 0:
        torch.save(torch.zeros(3), "a.pt")
else:
    print(torch.load("a.pt", map_location="cpu"))
dist.destroy_process_group()
