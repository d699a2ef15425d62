"""What ranks call: collectives, messages, groups."""
