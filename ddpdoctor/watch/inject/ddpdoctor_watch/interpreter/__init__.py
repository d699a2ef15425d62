"""What is seen of Python itself: exceptions, exits, signals, settings, children, streams and files."""
