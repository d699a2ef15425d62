"""Accelerators as their vendors' own tools and the kernel describe them: each is asked once."""
