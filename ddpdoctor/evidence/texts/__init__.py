"""Known messages of torch, NCCL, gloo, CUDA, drivers and schedulers: the table, and how lines are matched."""
