"""What every part of the hook builds on: the journal, the owner of a frame, replacing functions, the budget."""
