"""Reading the user's scripts, without importing or running them."""

from ddpdoctor.source.files.enclosing import Condition, find_conditions, find_handler, find_loss, is_source

__all__ = ["Condition", "find_conditions", "find_handler", "find_loss", "is_source"]
