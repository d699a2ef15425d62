"""What is read of a program's models: wrappers, modules that run, checkpoints, fingerprints of tensors."""
