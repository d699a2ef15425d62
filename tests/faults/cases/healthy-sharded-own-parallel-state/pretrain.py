import argparse

import torch
import torch.distributed as dist
from torch import nn

import parallel_state as mpu
from layers import ParallelMLP


def parse_args():
    parser = argparse.ArgumentParser(description="toy pretraining")
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--hidden-size", type=int, default=16)
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--train-iters", type=int, default=10)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def get_batch(args, iteration):
    dp_rank = dist.get_rank(mpu.data_group())
    dp_size = dist.get_world_size(mpu.data_group())
    generator = torch.Generator().manual_seed(iteration * dp_size + dp_rank)
    x = torch.randn(args.micro_batch_size, args.hidden_size, generator=generator)
    return x, x.sort(dim=1).values


def allreduce_gradients(model):
    size = dist.get_world_size(mpu.data_group())
    for p in model.parameters():
        p.grad.div_(size)
        dist.all_reduce(p.grad, group=mpu.data_group())


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel(args.tensor_model_parallel_size)
    layers = [ParallelMLP(args.hidden_size, seed=10 * i) for i in range(args.num_layers)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for iteration in range(1, args.train_iters + 1):
        x, y = get_batch(args, iteration)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        allreduce_gradients(model)
        optimizer.step()
    average = loss.detach().clone()
    dist.all_reduce(average, group=mpu.data_group())
    if dist.get_rank() == 0:
        print(f"iteration {iteration} | loss {average.item() / dist.get_world_size(mpu.data_group()):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
