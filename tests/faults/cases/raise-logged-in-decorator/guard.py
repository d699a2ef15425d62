import functools
import logging
import os
import sys


def guarded(function):
    @functools.wraps(function)
    def wrapper(*args):
        try:
            return function(*args)
        except BaseException:
            logging.exception("%s failed", function.__name__)
            sys.stderr.flush()
            os._exit(7)

    return wrapper
