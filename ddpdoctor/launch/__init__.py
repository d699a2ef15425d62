"""The tiny world: torch's elastic agent on a preloaded forkserver, run in bounded stages."""
