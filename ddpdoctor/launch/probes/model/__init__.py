"""The model that the user gives with ``--model``."""
