from layout import Layout

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    layout = Layout(dist.get_rank(), dist.get_world_size())
    value = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(value, group=layout.data)
        if layout.is_head:
            dist.all_reduce(value, group=layout.heads)
        dist.all_reduce(value, group=layout.everyone)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
