"""What ranks held and were given while they trained, and where their time went."""
