"""What ranks train on: samplers, loaders, splits, seeds."""
