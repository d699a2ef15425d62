"""The figures that the project owes its users; `python -m benchmarks` runs all and prints a table."""
