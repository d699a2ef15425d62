"""Recorded calls of torch.distributed, matched over ranks: no checks, but what checks are made of."""
