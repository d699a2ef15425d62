"""Replicas of one model that part, and why."""
