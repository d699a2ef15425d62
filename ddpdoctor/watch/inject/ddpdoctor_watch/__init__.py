"""What ``ddpdoctor run`` puts into every Python process of a job.

Runs inside other people's programs, under whatever interpreter they use, so: the standard library only,
syntax of Python 3.8, no thread of Python's (but for an elastic agent's, see `nodes.agents`), no signal handler, nothing
printed, nothing raised. What it sees goes as one JSON object per line to
``$DDPDOCTOR_RUN/processes/<pid>-<start ticks>.jsonl``. Beside it Python's fault handler writes to the ``.fault``
file, and calls of torch.distributed go into the ``.ring`` file (`calls.ring`).

`finder` waits for modules to be imported; `torchpatches` hooks those of torch and connects the rooms, each of which
knows only those below it: `training` and `nodes`, `models`, `calls` and `interpreter`, `core`
(tests/watch/test_inject_rooms.py). A process without torch loads `core` and `interpreter` alone.

Events and their fields stand in ``ddpdoctor/facts/events.py``, the layout of the ring in ``ddpdoctor/facts/wire.py``.
"""

from __future__ import annotations

import os

# What is true of torch and Python stands in one place, also for the processes of a job: ddpdoctor/facts.
__path__.append(os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__path__[0]))), "facts"))

_begun = False
_watching = False


def begin() -> None:
    """Start watching this process, where the environment asks for it; the second call does nothing."""
    global _begun, _watching
    run = os.environ.get("DDPDOCTOR_RUN")
    if _begun or not run or os.environ.get("DDPDOCTOR_WATCH") == "0":
        return
    _begun = True
    from .core import journal

    if not journal.open_journal(run):
        return
    from . import finder
    from .core import process
    from .interpreter import hooks

    _watching = True
    place = process.note_start()
    try:
        from .interpreter import streams

        if place["role"] == "rank":
            streams.attach(place["rank"], place["attempt"])
        elif place["role"] == "other" and streams.is_command():
            streams.attach(None, 0, command=True)
    except Exception as error:
        journal.failed("streams", error)
    try:
        if place["role"] == "rank" and place["world_size"] != 1:
            from .interpreter import files

            files.install()
    except Exception as error:
        journal.failed("files", error)
    if place["role"] == "other":
        journal.note_helper()
    hooks.install()
    try:
        finder.install()
    except Exception as error:
        journal.failed("finder", error)


def settle() -> None:
    """Take the exception hooks, now that the user's own sitecustomize may have set some."""
    if _watching:
        from .core import journal
        from .interpreter import hooks

        try:
            hooks.take_excepthooks()
        except Exception as error:
            journal.failed("excepthook", error)
