"""Files over which ranks race, and checkpoints that were loaded wrongly."""
