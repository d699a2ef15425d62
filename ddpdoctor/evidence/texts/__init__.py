"""Texts of torch, NCCL, gloo, CUDA, drivers and schedulers that are known: the table, and how lines are matched."""
