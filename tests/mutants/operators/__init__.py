"""Mistakes to put into correct code, each the reverse of a correction that people make."""

from tests.mutants.operators import collectives, data, files, launch, numbers, wrapper
from tests.mutants.operators.base import OPERATORS, Operator

__all__ = ["OPERATORS", "Operator", "collectives", "data", "files", "launch", "numbers", "wrapper"]
