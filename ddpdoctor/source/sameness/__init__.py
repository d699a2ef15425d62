"""What is the same on all ranks, and what each rank has of its own."""
