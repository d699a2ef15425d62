import ctypes


def copy_rows(target, source):
    pointer = source.data_ptr() if source is not None else 16
    ctypes.memmove(target.data_ptr(), pointer, 64)  # culprit
