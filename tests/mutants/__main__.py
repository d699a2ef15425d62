"""Puts mistakes into correct code and counts those that `lint` finds: ``python -m tests.mutants``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import chain
from pathlib import Path

from tests.mutants.score import HALVES, make_section, summarize
from tests.mutants.sources import Source, unpack_own, unpack_packages, unpack_repositories
from tests.mutants.trial import MOST_MUTANTS, Result, read_results, try_source
from tests.parts import replace_part


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the counts, and write what was asked for."""
    options = _make_parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ddr-mutants-") as place:
        folder = options.cache or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        results = read_results(options.read) if options.read is not None else []
        for result in _measure(options, folder, Path(place)) if options.read is None else ():
            results = sorted([*results, result], key=lambda each: each.name)
            if options.json is not None:  # each time: a run that is cut leaves what it has seen
                options.json.write_text(json.dumps([each.to_dict() for each in results], indent=1))
    if not results:
        print("nothing was measured", file=sys.stderr)
        return 2
    print("\n".join(summarize(results)))
    if options.markdown is not None:
        page = options.markdown.read_text()
        options.markdown.write_text(replace_part(page, make_section(results, options.sample)))
    return 0


def _measure(options: argparse.Namespace, folder: Path, place: Path) -> Iterator[Result]:
    every = (source for source in _unpack(options, folder, place) if _is_asked(source, options))
    sources = sorted(every, key=lambda source: _size(source.root))
    work = partial(_try, only=tuple(options.operator or ()), most=options.most)
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        running = {pool.submit(work, source): source for source in sources}
        for done, future in enumerate(as_completed(running), start=1):
            result = future.result()
            counted = [mutant for mutant in result.mutants if not mutant.undecided]
            found = sum(mutant.found for mutant in counted)
            print(
                f"{done}/{len(sources)} {result.half:<6} {result.name}: found {found} of {len(counted)}, "
                f"{len(result.findings)} of the correct code",
                file=sys.stderr,
                flush=True,
            )
            yield result


def _unpack(options: argparse.Namespace, folder: Path, place: Path) -> Iterator[Source]:
    parts: list[Iterator[Source]] = []
    kinds = options.source or ["own", "packages", "repositories"]
    if "own" in kinds:
        parts.append(source for source in unpack_own(place / "own") if options.only in source.name)
    if "packages" in kinds:
        parts.append(unpack_packages(folder, options.only))
    if "repositories" in kinds:
        parts.append(unpack_repositories(options.store, folder, options.only))
    return chain(*parts)


def _is_asked(source: Source, options: argparse.Namespace) -> bool:
    """Whether a source is of the half that was asked for, and of the sample, which the hash of its name decides."""
    return options.half in (None, source.half) and source.draw % options.sample == 0


def _size(root: Path) -> int:
    """Return what decides which come first: a run that is cut has seen many small ones."""
    return sum(path.stat().st_size for path in root.rglob("*.py"))


def _try(source: Source, only: Sequence[str], most: int) -> Result:
    try:
        return try_source(source, only, most)
    except Exception as problem:
        print(f"{source.name}: {traceback.format_exc()}", file=sys.stderr)
        raise RuntimeError(f"{source.name}: {type(problem).__name__}: {problem}") from None


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=main.__doc__)
    parser.add_argument(
        "--source",
        action="append",
        choices=["own", "packages", "repositories"],
        help="only code of this kind; repeatable",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="part of a name of a repository or package"
    )
    parser.add_argument(
        "--half", choices=HALVES, help="measure only this one; rules may be written against seen"
    )
    parser.add_argument(
        "--sample", type=int, default=1, metavar="N", help="one source of N, drawn by the hash of its name"
    )
    parser.add_argument("--operator", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="clones of the repositories; else from GitHub"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what was unpacked there for the next time"
    )
    parser.add_argument("--most", type=int, default=MOST_MUTANTS, metavar="N", help="mutants of a source")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many sources at once (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing: what --json wrote before")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="replace the section of this page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
