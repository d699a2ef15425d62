import functools
import traceback


def retry(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            for attempt in range(times):
                try:
                    return function()
                except OSError:
                    traceback.print_exc()
            raise RuntimeError(f"failed {attempt + 1} times")

        return wrapper

    return decorate
