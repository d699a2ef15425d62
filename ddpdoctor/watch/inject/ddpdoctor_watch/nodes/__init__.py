"""What the elastic agents of several nodes exchange."""
