"""Recorded calls of torch.distributed, matched across ranks: no checks, but what checks are made of."""
