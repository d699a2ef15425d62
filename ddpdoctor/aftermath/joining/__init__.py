"""One job's evidence out of what its logs and error files say: `join` is where to begin."""
