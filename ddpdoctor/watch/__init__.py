"""Watching the user's job: starting it, sampling it from outside, reading what its processes recorded."""
