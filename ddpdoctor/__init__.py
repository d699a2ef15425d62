"""ddpdoctor: names the cause when a PyTorch DistributedDataParallel job does not work."""

__version__ = "0.1.0"
