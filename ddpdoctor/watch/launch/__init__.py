"""Starting the user's job, staying beside it until it ends, and what is known then."""
