"""Checks of source that was read and not run: what ranks do differently, and lines that are wrong in any run.

One module for each mistake, registered because it is here: the rule that sees it, and the check that tells it.
"""
