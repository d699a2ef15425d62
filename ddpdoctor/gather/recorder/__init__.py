"""Evidence out of Flight Recorder dumps: pickled or JSON, of one rank each; nothing in them is ever executed."""

from ddpdoctor.gather.recorder.read import is_dump, looks_like_dump, read_dumps

__all__ = ["is_dump", "looks_like_dump", "read_dumps"]
