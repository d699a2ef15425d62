import ctypes


def decode(pointer):
    return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int16)).contents.value  # culprit
