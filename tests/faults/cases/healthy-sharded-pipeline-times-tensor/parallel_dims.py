from dataclasses import dataclass

from torch.distributed.device_mesh import init_device_mesh


@dataclass
class ParallelDims:
    dp: int
    pp: int
    tp: int
    world_size: int

    def __post_init__(self):
        if self.dp * self.pp * self.tp != self.world_size:
            raise ValueError(f"dp {self.dp} * pp {self.pp} * tp {self.tp} is not {self.world_size}")

    def build_mesh(self, device_type):
        dims, names = [], []
        for size, name in ((self.pp, "pp"), (self.dp, "dp"), (self.tp, "tp")):
            if size > 1:
                dims.append(size)
                names.append(name)
        return init_device_mesh(device_type, tuple(dims), mesh_dim_names=tuple(names))

    @property
    def pp_enabled(self):
        return self.pp > 1
