"""What the elastic agents of several nodes tell each other."""
