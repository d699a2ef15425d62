"""Looking at processes from beside: stacks, states, exits."""
