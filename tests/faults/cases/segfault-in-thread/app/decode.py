import ctypes
import time


def decode(frames, address):
    time.sleep(0.5)
    buffer = ctypes.create_string_buffer(b"frame")
    frames.append(ctypes.string_at(address or buffer, 4))  # culprit
