"""How fast ranks reach each other, beside how fast the machine itself is."""
