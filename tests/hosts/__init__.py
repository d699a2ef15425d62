"""Several hosts on one machine, for tests that need a real network between nodes."""
