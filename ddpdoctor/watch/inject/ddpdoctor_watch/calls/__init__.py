"""What a process asks of torch.distributed: calls, groups and the work that they give back."""
