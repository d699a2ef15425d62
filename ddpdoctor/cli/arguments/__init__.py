"""From the words of a command line and of pyproject.toml to checked options."""
