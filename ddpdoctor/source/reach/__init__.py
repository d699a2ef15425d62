"""Which collectives some ranks reach and others do not."""
