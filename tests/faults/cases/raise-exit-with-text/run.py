import argparse

import torch.distributed as dist

CONFIGS = {"base": {"rates": [0.1]}}


def learning_rate(name, rank):
    rates = CONFIGS[name]["rates"]
    if rank >= len(rates):
        raise SystemExit(f"config '{name}' has no learning rate for rank {rank}")
    return rates[rank]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", choices=sorted(CONFIGS))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    print(learning_rate(options.config, dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
