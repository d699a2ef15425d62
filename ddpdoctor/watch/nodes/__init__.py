"""Several nodes in one verdict."""
