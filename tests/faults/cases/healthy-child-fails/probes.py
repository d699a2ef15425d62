def probe():
    raise ImportError("flash attention is not installed")
