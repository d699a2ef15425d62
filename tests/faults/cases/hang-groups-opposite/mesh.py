import torch
import torch.distributed as dist


class Mesh:
    def __init__(self):
        self.data = dist.new_group([0, 1])
        self.tensor = dist.new_group([0, 1])

    def reduce(self, value, first, second):
        dist.all_reduce(value, group=first)  # culprit
        dist.all_reduce(value, group=second)


def main():
    dist.init_process_group("gloo")
    mesh = Mesh()
    orders = [(mesh.data, mesh.tensor), (mesh.tensor, mesh.data)]
    mesh.reduce(torch.ones(4), *orders[dist.get_rank()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
