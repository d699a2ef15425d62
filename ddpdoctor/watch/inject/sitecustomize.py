"""Start-up hook: runs in every Python process whose PYTHONPATH names this directory.

It starts watching, takes itself out of sight (``sys.path``, ``sys.modules``) and then imports the
``sitecustomize`` that would have run without it. Any interpreter of the job may read this file, Python 2
included: hence no annotations, no functions and no newer syntax.
"""

import sys

_watch = None
if sys.hexversion >= 0x03080000:
    try:
        # By name at run time: the package is found through the entry of sys.path that is removed below.
        _watch = __import__("ddpdoctor_watch")
        _watch.begin()
    except Exception:
        _watch = None

_here = __file__.rpartition("/")[0]
sys.path[:] = [_entry for _entry in sys.path if _entry.rstrip("/") != _here]
sys.path_importer_cache.pop(_here, None)
sys.modules.pop("sitecustomize", None)
try:
    # Fails as it would fail without us where there is none; `site` knows that error by its name.
    __import__("sitecustomize")
finally:
    if _watch is not None:
        _watch.settle()
