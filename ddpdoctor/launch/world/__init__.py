"""The tiny world of one node, seen from beside: `supervisor` runs it, `records` says what it left behind."""
