"""The test job of one node: `supervisor` runs and watches it, `records` holds what became of each stage."""
