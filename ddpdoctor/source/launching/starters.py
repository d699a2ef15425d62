"""What starts ranks in a command line: torchrun, torch.distributed.launch, accelerate launch; and what runs that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ddpdoctor.source.launching.shell import Command, is_known, read_shell

FLAGS = frozenset({"standalone", "module", "no-python", "run-path", "use-env", "multi-gpu", "use-deepspeed",
                   "use-fsdp", "cpu", "tpu", "debug", "quiet", "use-megatron-lm", "use-xpu",
                   "same-network"})  # fmt: skip
"""Options of a launcher that take no value."""
SHORT = {"-N": "nodes", "-n": "ntasks", "-w": "nodelist", "-m": "module"}
RUNNERS = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "ssh", "pdsh", "docker", "kubectl", "jsrun",
                     "aprun", "parallel", "xargs", "sbatch", "salloc"})  # fmt: skip
"""Commands that run another one, perhaps elsewhere or several times."""
DEFAULT_PORT = "29500"
INSIDE = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch)\b")
MOST_DEEP = 3


@dataclass(frozen=True, slots=True)
class Starter:
    """A command that starts the ranks of one node, or of all."""

    kind: str
    """torchrun, launch (torch.distributed.launch) or accelerate."""
    options: Mapping[str, str]
    """Its options by their long names with hyphens; empty text for one that takes no value."""
    script: str
    """What is started; empty where it is not seen."""
    arguments: tuple[str, ...]
    """What the script is given."""
    complete: bool
    """Whether all options are written out: a variable may hold further ones."""
    command: Command
    runner: str = ""
    """What runs it: srun, mpirun, docker …; empty where the script itself does."""
    runner_options: Mapping[str, str] = field(default_factory=dict)

    def number(self, *names: str) -> int | None:
        """Return the value of the first of some options that is given, where it is a number that is written out."""
        for name in names:
            if name in self.options:
                text = self.options[name]
                return int(text) if text.isascii() and text.isdigit() else None
        return None

    @property
    def per_node(self) -> int | None:
        """The processes that it starts on a node; None where that is not known."""
        if self.kind == "accelerate":
            total, nodes = self.number("num-processes"), self.nodes
            return total // nodes if total is not None and nodes else None
        if "nproc-per-node" not in self.options:
            return 1 if self.complete else None
        return self.number("nproc-per-node")

    @property
    def nodes(self) -> int | None:
        """The nodes that it is told of; None where that is not known."""
        name = "num-machines" if self.kind == "accelerate" else "nnodes"
        if name not in self.options:
            return 1 if self.complete and "config-file" not in self.options else None
        low, _, high = self.options[name].partition(":")
        return int(low) if low.isascii() and low.isdigit() and high in ("", low) else None

    @property
    def endpoint(self) -> tuple[str, str] | None:
        """The host and the port where ranks meet, as written; empty texts for what is not given."""
        if not self.complete and not {"rdzv-endpoint", "master-addr", "main-process-ip"} & set(self.options):
            return None
        if "rdzv-endpoint" in self.options:
            host, _, port = self.options["rdzv-endpoint"].rpartition(":")
            return (host, port) if host else (port, "")
        host = self.options.get("master-addr", self.options.get("main-process-ip", ""))
        return host, self.options.get("master-port", self.options.get("main-process-port", ""))

    @property
    def port(self) -> str | None:
        """The port that it takes on its own host; None where that is not known, or the system chooses it."""
        if "standalone" in self.options or self.options.get("rdzv-backend", "static") != "static":
            known = self.endpoint
            fixed = known[1] if known is not None and "standalone" not in self.options else ""
            return fixed if fixed.isdigit() and fixed != "0" else None
        found = self.endpoint
        if found is None or (not self.complete and not found[1]):
            return None
        port = found[1] or ("" if "config-file" in self.options else DEFAULT_PORT)
        return port if port.isdigit() and port != "0" else None


def find_starters(commands: Iterable[Command]) -> Iterator[Starter]:
    """Yield what starts ranks among commands, in order of their lines."""
    for command in commands:
        yield from _find(command, "", {}, 0)


def _find(command: Command, runner: str, outer: Mapping[str, str], depth: int) -> Iterator[Starter]:
    words = command.words
    if PurePosixPath(words[0]).name in ("echo", "printf", "cat", "pip", "which", "pkill", "grep", "sed"):
        return
    place = _find_start(words)
    head = words[: place[1] if place is not None else len(words)]
    for index, word in enumerate(head):
        if PurePosixPath(word).name in RUNNERS:
            runner = PurePosixPath(word).name
            outer = {**outer, **read_options(words[index + 1 : len(head)])[0]}
            break
    if place is not None:
        kind, _, rest = place
        options, left, complete = read_options(words[rest:])
        yield Starter(
            kind, options, left[0] if left else "", tuple(left[1:]), complete, command, runner, outer
        )
        return
    for word in words if depth < MOST_DEEP else ():
        if " " in word and INSIDE.search(word):  # bash -c "torchrun …"
            for inner in read_shell(word.split("\n")).commands:
                moved = Command(inner.words, command.first, command.last, command.variables,
                                command.background or inner.background, command.loops,
                                command.conditional or inner.conditional)  # fmt: skip
                yield from _find(moved, runner or PurePosixPath(words[0]).name, outer, depth + 1)


def _find_start(words: Sequence[str]) -> tuple[str, int, int] | None:
    """Return which launcher is called, its place and the place of its first argument."""
    for place, word in enumerate(words):
        name = PurePosixPath(word).name
        if name == "torchrun":
            return "torchrun", place, place + 1
        if word in ("torch.distributed.run", "torch.distributed.launch") and words[place - 1 : place] == (
            "-m",
        ):
            return "torchrun" if word.endswith("run") else "launch", place, place + 1
        if name == "accelerate" and words[place + 1 : place + 2] == ("launch",):
            return "accelerate", place, place + 2
    return None


def read_options(words: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """Return options by their long names, what comes behind them, and whether all of them are written out."""
    options: dict[str, str] = {}
    complete = True
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("-"):
            if not is_known(word) and place < len(words):
                complete = False  # a variable that may hold options
                continue
            return options, [word, *words[place:]], complete
        if word == "--":
            break
        name, given, value = word.partition("=")
        short = SHORT.get(name[:2]) if not name.startswith("--") else None
        if short is not None:
            name, value = short, value if given else name[2:]
            given = value
        key = name.lstrip("-").replace("_", "-")
        if not given and key not in FLAGS and place < len(words) and not words[place].startswith("-"):
            value = words[place]
            place += 1
        options[key] = value
    return options, [], complete
