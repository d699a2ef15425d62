"""Telling apart, in the arguments of `run`, what is ours, what is torchrun's and what is the script's.

Ours and torchrun's options come before the script or ``--``; everything after belongs to the script, verbatim.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.errors import UsageError

TORCHRUN_VALUES = (
    "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts "
    "--monitor-interval --start-method --event-log-handler --role --log-dir --redirects --tee "
    "--local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr "
    "--master-port --local-addr --logs-specs --numa-binding --signals-to-handle --shutdown-timeout -r -t"
).split()
"""Options of torch.distributed.run 2.4 to 2.13 that take a value."""
TORCHRUN_FLAGS = ["--standalone", "--module", "-m", "--no-python", "--run-path", "--virtual-local-rank"]
"""Options of torchrun that take no value."""
COUNTS = ("auto", "gpu", "cpu", "xpu")
"""Words that torchrun takes for a number of ranks, beside the name of a plugin's device."""
MISPLACED = ("--json", "--html")
"""Options of ours that people put behind the script, where they are the script's; one hint is given."""


@dataclass(frozen=True, slots=True)
class Split:
    """The arguments of `run`, told apart."""

    own: tuple[str, ...]
    torchrun: tuple[str, ...]
    """Options for torch.distributed.run, as they were typed, ``--nproc`` under its own name."""
    target: tuple[str, ...]
    """The script (or module, or program) and its arguments; or the whole command after ``--``."""
    is_command: bool = False
    """The target is any command, not a script for torchrun."""

    @property
    def is_module(self) -> bool:
        """Whether the target is a module (``-m``)."""
        return any(word in ("-m", "--module") for word in self.torchrun)

    @property
    def is_program(self) -> bool:
        """Whether the target is a program that torchrun is to start without Python."""
        return any(_plain(word) == "--no-python" for word in self.torchrun)

    @property
    def script(self) -> str | None:
        """The path of the script, where the target is one."""
        if self.is_command or self.is_module or self.is_program or not self.target:
            return None
        return self.target[0]


def split_arguments(arguments: Sequence[str], values: Collection[str], flags: Collection[str]) -> Split:
    """Tell the arguments of `run` apart.

    Args:
        arguments: all of them.
        values: options of ours that take a value, in all spellings.
        flags: options of ours that take none.

    Raises:
        UsageError: an unknown option, an option without its value, nothing to run, or options of torchrun before a
            command that does its own launching.
    """
    own: list[str] = []
    launcher: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return _finish_command(own, launcher, rest)
        if not word.startswith("-") or word == "-":
            return Split(tuple(own), tuple(launcher), (word, *rest))
        name, equals, _ = word.partition("=")
        plain = _plain(name)
        if plain in ("--nproc", "--nproc-per-node"):
            launcher += ["--nproc-per-node", _check_count(name, _value(word, rest))]
        elif plain in TORCHRUN_FLAGS:
            launcher.append(word)
        elif plain in TORCHRUN_VALUES:
            launcher += [word] if equals else [word, _value(word, rest)]
        elif plain in flags or name in flags:
            own.append(word)
        elif plain in values or name in values:
            own += [word] if equals else [word, _value(word, rest)]
        else:
            raise _unknown(name, (*values, *flags, *TORCHRUN_VALUES, *TORCHRUN_FLAGS, "--nproc"))
    if own and own[-1] in ("-h", "--help"):
        return Split(tuple(own), tuple(launcher), ())
    raise UsageError("nothing to run", hint="ddpdoctor run --nproc 4 train.py, or: ddpdoctor run -- COMMAND")


def read_torchrun(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's options and their values, by name without dashes; of PET_* variables where one is not given.

    Args:
        words: what stands behind ``torchrun``; the script ends its options.
        environ: variables of torchrun.
    """
    found = {
        name: value
        for name in (option[2:] for option in TORCHRUN_VALUES if option.startswith("--"))
        if (value := environ.get(f"PET_{name.replace('-', '_').upper()}"))
    }
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        plain = _plain(name)
        if plain in TORCHRUN_FLAGS:
            found[plain.lstrip("-")] = ""
        elif equals or rest:
            found[plain.lstrip("-")] = value if equals else rest.pop(0)
    return found


def find_torchrun(words: Sequence[str]) -> Sequence[str] | None:
    """Return what stands behind torchrun in a command; None where it is none of torchrun."""
    for number, word in enumerate(words[:8]):
        if word.rpartition("/")[2] in ("torchrun", "torch.distributed.run", "torch.distributed.launch"):
            return words[number + 1 :]
    return None


def _finish_command(own: list[str], launcher: list[str], command: list[str]) -> Split:
    if not command:
        raise UsageError(
            "nothing to run after --", hint="ddpdoctor run -- torchrun --nproc-per-node 4 train.py"
        )
    if launcher:
        raise UsageError(
            f"{launcher[0]} is an option of torchrun, but {command[0]!r} launches its own ranks",
            hint=f"ddpdoctor run {' '.join([*launcher, 'train.py'])}, or drop it before --",
        )
    return Split(tuple(own), (), tuple(command), is_command=True)


def _plain(name: str) -> str:
    """torchrun takes both spellings of its long options."""
    return name.replace("_", "-") if name.startswith("--") else name


def _check_count(option: str, value: str) -> str:
    """Return what torchrun takes for a number of ranks; a word that it does not know may be a device's of a plugin.

    Raises:
        UsageError: it is no number of at least 1 and no word, or nearly one of the words.
    """
    if value.isdecimal() and int(value):
        return value
    near = difflib.get_close_matches(value, COUNTS, 1, cutoff=0.8)
    if value in COUNTS or (not near and value.isidentifier()):
        return value
    raise UsageError(
        f"{option}: {value!r} is not a number of ranks",
        hint=f"{option} {near[0] if near else 2}, or one of {', '.join(COUNTS)}",
    )


def _value(word: str, rest: list[str]) -> str:
    _, equals, value = word.partition("=")
    if equals:
        return value
    if not rest:
        raise UsageError(f"{word} needs a value", hint="ddpdoctor run --help")
    return rest.pop(0)


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(_plain(name), known, 1)
    hint = f"ddpdoctor run {near[0]}" if near else "options of the script must follow it"
    return UsageError(f"neither ddpdoctor run nor torchrun has an option {name}", hint=hint)


def find_misplaced(split: Split) -> str | None:
    """Return an option of ours that stands among the script's arguments, for one hint."""
    return next((word for word in split.target[1:] if word.partition("=")[0] in MISPLACED), None)
