"""Comparing a job with a reference: the same script on another number of ranks, or with other arguments."""
