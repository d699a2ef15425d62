"""The wire between a process of a job and its readers: the file of calls that it writes and others read meanwhile.

The process maps the file, so that a call costs no system call and what was written stays whatever becomes of the
process. The rest of what a process reports are events of its journal (`events`).
"""

from __future__ import annotations

MAGIC = b"DDPRING1"
BLIND = b"DDPBLIND"
"""Written over `MAGIC` where calls are missing."""
HEADER = 4096
"""Bytes before the first record."""
RECORD = 64
"""Bytes of a record."""
HEAD_FORMAT = "<8sIIQQQ"
"""Magic, capacity in records, bytes of a record, process, its start in clock ticks, its main thread."""
COUNT_AT = 64
"""Where the number of records written stands; the oldest are overwritten."""
RECORD_FORMAT = "<QQQQIIIiiIQ"
"""Number (from 1), begin and end in monotonic ns (end 0: has not returned), ordinal in its group, signature, call site,
group, root or peer (-1: none), tag, flags, thread."""
END_AT, FLAGS_AT = 16, 52
"""Where those stand in a record that is written before they are known."""
ASYNC, POINT_TO_POINT, END_UNKNOWN, OTHER, RAISED = 1, 2, 4, 8, 16
"""Flags: asked for asynchronously; send or receive; seen at its beginning only; no public collective (initialisation,
and what DistributedDataParallel does); it came back with an exception."""
INIT, WRAP, NEW_GROUP = "init_process_group", "DistributedDataParallel", "new_group"
FORWARD = "DistributedDataParallel.forward"
"""Calls that are written down beside the collectives."""
ENDED = "snapshots/ended"
"""File of a run directory that is there once `run` stops a job that hangs."""
