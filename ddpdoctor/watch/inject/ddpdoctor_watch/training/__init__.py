"""What a rank records of its training: steps, backward passes, batches, times, and how it uses its wrapper."""
