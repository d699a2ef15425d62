"""Which files are read, and what they hold beside the program: comments, conditions around a line."""
