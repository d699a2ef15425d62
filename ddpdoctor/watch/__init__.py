"""Watching the user's job: starting it, looking at it from beside, reading what its processes wrote."""
