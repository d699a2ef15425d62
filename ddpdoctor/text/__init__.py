"""Lines of text for a terminal. Nothing but the standard library, so that `list` is quick."""
