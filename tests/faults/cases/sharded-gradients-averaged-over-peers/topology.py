import itertools

import torch.distributed as dist


class ProcessTopology:
    """A grid of ranks; an axis has a group for each set of ranks that differ in it alone."""

    def __init__(self, axes, dims):
        self.axes, self.dims = axes, dims
        self.coordinates = list(itertools.product(*map(range, dims)))
        self.mine = self.coordinates[dist.get_rank()]
        self._groups = {
            "model": self._make_groups(position=1),
            "data": self._make_groups(position=1),  # culprit
        }

    def _make_groups(self, position):
        def rest(coordinate):
            return coordinate[:position] + coordinate[position + 1 :]

        for key in sorted({rest(each) for each in self.coordinates}):
            ranks = [rank for rank, each in enumerate(self.coordinates) if rest(each) == key]
            group = dist.new_group(ranks)  # culprit
            if dist.get_rank() in ranks:
                mine = group
        return mine

    def group(self, axis):
        return self._groups[axis]

    def size(self, axis):
        return self.dims[self.axes.index(axis)]

    def rank(self, axis):
        return self.mine[self.axes.index(axis)]
