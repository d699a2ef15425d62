"""What ranks are given: samplers, splits, batches, random numbers."""
