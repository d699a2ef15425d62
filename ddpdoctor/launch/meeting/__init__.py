"""How the parties of a check of several nodes meet, and what they exchange: `party` is where to begin."""
