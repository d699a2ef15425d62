"""What ranks write and read: checkpoints and directories."""
