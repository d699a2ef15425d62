"""Checks of hangs: which ranks wait for which, and which rank blocks them.

Made of looks at all ranks (`ddpdoctor.evidence.standstill`): their open calls, their stacks twice, their processes.
*Proof* is a rank that can never go on, for it waits for one that is gone or that waits for it; *suspicion* is a rank
outside of every collective that does not move.
"""

from ddpdoctor_checks.job.hangs.progress import find_hang

__all__ = ["find_hang"]
