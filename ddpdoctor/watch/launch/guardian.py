"""Shells beside the job: one hears the signals of its process group, one tidies up where nobody else is left to.

They are shells because a shell takes 1 MB, and reads the end of its input however we end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ddpdoctor.gather.process_state import STARTED, read_stat

GROUP_S = 0.05
"""How long after a signal of ours the witness may get its own: who kills one process after the other (systemd, Slurm)
takes microseconds for each."""
LAUNCHER_TENTHS = 450
"""Tenths of a second that a launcher which was told to end may take: torchrun itself gives its ranks 30 s."""
RANK_TENTHS = 50
"""Tenths of a second that ranks whose launcher has gone may take: what SIGTERM does not end by then gets SIGKILL."""
AFTER_US = r"""
IFS= read -r private
IFS= read -r run
read -r launcher since
read -r _
same() {
    line=
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    set -- "$2" ${line##*) }
    case $2 in Z|X) return 1 ;; esac
    [ "${21}" = "$1" ]
}
each() {
    left=
    for file in "$run"/processes/*-*.jsonl; do
        name=${file##*/}; name=${name%.jsonl}; pid=${name%%-*}; ticks=${name#*-}
        case $pid$ticks in *[!0-9]*|'') continue ;; esac
        [ "${#ticks}" -lt 19 ] && [ "${#pid}" -lt 10 ] && [ "$ticks" -ge "$since" ] || continue
        same "$pid" "$ticks" && left=yes && kill "-$1" "$pid" 2>/dev/null
    done
    [ -n "$left" ]
}
wait_for() {
    tenths=$1; shift
    while "$@" && [ "$tenths" -gt 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
}
if [ -n "$since" ]; then
    wait_for "$1" same "$launcher" "$since"
    each TERM && each CONT && wait_for "$2" each 0
    each KILL
fi
[ -n "$private" ] && rm -f "$private"/* && rmdir "$private"
"""
"""What the guardian does once our end of its input is closed: `Guardian.close` kills it, so that it only comes to this
when we were killed. First the launcher has its time: it was told to end by the kernel (`PR_SET_PDEATHSIG`), and ends
its ranks itself. Ranks whose launcher was killed with us have nobody: they are those that wrote into the run directory.
A number that was given anew since has another time of start. What it has to know comes by its input and not as
arguments, so that ``pkill -9 -f`` with a word of a path does not find it."""


class Guardian:
    """Ends the ranks and removes the directory of our sockets where we and the launcher were killed.

    It is in a session of its own: who kills our whole process group, with a signal that nobody hears, does not get it.

    Args:
        private: the directory of the sockets.
        run: the run directory.
    """

    def __init__(self, private: Path, run: Path) -> None:
        words = ["sh", "-c", AFTER_US, "sh", str(LAUNCHER_TENTHS), str(RANK_TENTHS)]
        self.lost: list[str] = []
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell: what is left when we are killed stays
            self._shell = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._tell(f"{private}\n{run}\n")

    def watch(self, launcher: int) -> None:
        """Say who has been launched.

        Args:
            launcher: its process id.

        Raises:
            OSError: the shell has ended.
        """
        fields = read_stat(launcher)
        if fields:
            self._tell(f"{launcher} {fields[STARTED]}\n")

    def _tell(self, text: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.write(os.fsencode(text))
            self._shell.stdin.flush()

    def close(self) -> None:
        """End it."""
        _end(self._shell)
        self._shell = None


class Witness:
    """Tells a signal for the whole process group from one for us: beside the launcher, it gets the former too.

    A shell that waits for the end of its input, which ends with us however we end; the signals stay pending in
    it, for /proc to show. Its command line holds the launcher's, so that what is sent by name (``pkill -f
    train.py``) comes to both or to none. Without it torchrun would get such signals twice, and the second one
    breaks off its own stopping of the ranks, which are left behind then.

    Args:
        command: the launcher's.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = ["sh", "-c", "read _; :", "sh", *command]
        self._shell: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        with contextlib.suppress(OSError):  # no shell: every signal that somebody sent is passed on
            self._shell = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def heard(self, signum: int) -> bool:
        """Return whether the group got the signal; the next one is told apart again."""
        end = time.monotonic() + GROUP_S
        while self._shell is not None and not self._pending() >> (signum - 1) & 1:
            if time.monotonic() > end:
                return False
            time.sleep(GROUP_S / 10)
        if self._shell is None:
            return False
        self.close()
        self._start()
        return True

    def _pending(self) -> int:
        assert self._shell is not None
        try:
            text = Path(f"/proc/{self._shell.pid}/status").read_text()
        except OSError:
            return 0
        return int(text.partition("ShdPnd:")[2].split()[0], 16)

    def close(self) -> None:
        """End it."""
        shell, self._shell = self._shell, None
        _end(shell)


def _end(shell: subprocess.Popen[bytes] | None) -> None:
    if shell is not None:
        shell.kill()
        with contextlib.suppress(OSError):  # what was still to be written to it
            shell.communicate()
