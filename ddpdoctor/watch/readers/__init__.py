"""What the processes of a job wrote down, read and folded to evidence."""
