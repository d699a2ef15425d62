from .checkpoint import Checkpointer
from .common import is_main
from .loop import loop
