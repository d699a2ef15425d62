"""Lines of text for a terminal; nothing but the standard library, so that `list` is quick."""
