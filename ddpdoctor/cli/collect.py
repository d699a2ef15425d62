"""``ddpdoctor collect``: what to bring from a node whose job died, in one archive that `analyze` reads."""

from __future__ import annotations

import argparse
import re
import socket
import time
from pathlib import Path

from ddpdoctor.api.given_paths import require_path
from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.errors import EXIT_OK, DoctorError, UsageError

EXAMPLES = (
    ("ddpdoctor collect train.log", "on each node: tool output, kernel log and this log, in one archive"),
    (
        "ddpdoctor collect logs/ /tmp/nccl_trace/ --out node-b.tar.gz",
        "folders of logs and Flight Recorder dumps",
    ),
    ("srun ddpdoctor collect logs/", "on all nodes of a Slurm allocation"),
    ("ddpdoctor analyze *.tar.gz", "the archives of all nodes, read together"),
)
LIMIT_MB = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``collect``."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="logs, error files, Flight Recorder dumps, or folders of them",
    )
    add_option(
        parser,
        "--out",
        metavar="FILE",
        help="the archive to create (ddpdoctor-HOST-TIME.tar.gz); must not exist",
    )
    add_option(
        parser,
        "--limit",
        type=int,
        metavar="MB",
        help=f"size limit in MB for all files before compression ({LIMIT_MB})",
    )
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Collect, and say what was taken and what is missing.

    Raises:
        UsageError: a path does not exist, the archive does, or the limit is none.
        DoctorError: the archive cannot be written.
    """
    from ddpdoctor.cli.output.display import print_text
    from ddpdoctor.gather.collecting import MEBI, collect

    limit = getattr(options, "limit", LIMIT_MB)
    if limit < 1:
        raise UsageError(f"--limit must be a number of MB, at least 1, not {limit}")
    paths = getattr(options, "paths", None) or []
    for name in paths:
        require_path(name, hint="ddpdoctor collect train.log")
    host = re.sub(r"[^\w.-]", "-", socket.gethostname().partition(".")[0]) or "node"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = Path(getattr(options, "out", None) or f"ddpdoctor-{host}-{stamp}.tar.gz")
    try:
        found = collect(out, [Path(name) for name in paths], host=host, limit=limit * MEBI)
    except FileExistsError as problem:
        raise UsageError(f"{out} already exists", hint="ddpdoctor collect --out NEW.tar.gz") from problem
    except OSError as problem:
        raise DoctorError(f"{out} cannot be written: {problem.strerror or problem}") from problem
    if common.verbosity(options) >= 0:
        lines = [f"{out}: {len(found.taken)} files, {found.bytes / 1e6:.1f} MB before compression"]
        lines += [f"  not available: {sentence}" for sentence in found.missing]
        lines.append(f"next: ddpdoctor analyze {out} (together with the archives of the other nodes)")
        print_text("\n".join(lines) + "\n")
    return EXIT_OK
