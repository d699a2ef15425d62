"""Looking at a job while it runs: what its ranks do, whether it gets on, and what to say of it."""
