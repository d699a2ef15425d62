"""The test job of `check`: torch's elastic agent on a preloaded forkserver, run in bounded stages."""
