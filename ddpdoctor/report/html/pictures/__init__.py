"""The picture that stands first on the page: for each kind of verdict the one that shows it at a glance."""
