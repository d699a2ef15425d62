"""How the parties of a check of several nodes meet, and what they tell each other: `party` is where to begin."""
