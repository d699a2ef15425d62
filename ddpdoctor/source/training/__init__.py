"""What programs that train do: loops, wrapped models, what is frozen, written and set."""
