"""Reading what starts a job: shell and batch scripts, manifests, configurations; nothing of them is run."""
