"""What a terminal can show, and what is shown there while a command works."""
