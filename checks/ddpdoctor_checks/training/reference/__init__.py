"""A job beside its reference: whether they differ beyond what arithmetic explains, and in what."""
