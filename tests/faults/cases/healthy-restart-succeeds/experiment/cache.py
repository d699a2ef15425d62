def open_cache(attempt):
    if attempt == 0:
        raise OSError(116, "Stale file handle")
