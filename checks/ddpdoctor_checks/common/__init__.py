"""What families of checks share: stacks, places, words, commands to paste, and what stages left; no checks."""
