"""Gatherers of one node: they read and measure, and draw no conclusion.

None of them raises for what a machine does not have: what could not be read is None or a note. None imports
torch.
"""
