"""What a rank writes down of its training: steps, backwards, batches, times, and how it uses its wrapper."""
