"""Accelerators as their vendors' own tools and the kernel describe them: one look each, no more."""
