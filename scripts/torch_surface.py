"""Compare what our own code uses of torch with what each version of it has, without installing any.

``python scripts/torch_surface.py`` reads the wheels of all versions (some 10 MB of each) and writes what was found of
the names that we use to tests/facts/torch_surface.json. The tests compare the code with that file; they fail where a
use is not in it, and where a version lacks what is used unguarded. A new version of torch is a line in `VERSIONS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from scripts.torch_uses import Use, list_uses, list_words  # noqa: E402  # also run as a script
from scripts.torch_wheels import MISSING, STUBS, UNKNOWN, Surface, open_wheels  # noqa: E402

VERSIONS = (
    "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0",
)  # fmt: skip
"""The last release of each minor version."""
DATA = ROOT / "tests" / "facts" / "torch_surface.json"
FOLDERS = ("ddpdoctor", "checks", "plugins")


def list_ours() -> list[Use]:
    """Return what code, pages and README use or name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    words = [
        use
        for page in pages
        if "adr" not in page.parts
        for use in list_words(str(page.relative_to(ROOT)), page.read_text())
    ]
    return [*list_uses(ROOT, FOLDERS), *words]


def gather(uses: Iterable[Use], wheels: Iterable[tuple[str, Surface]]) -> dict[str, Any]:
    """Return what versions have of what is used.

    Returns:
        ``missing`` and ``unread``: versions by name (``unread`` where the source does not tell); ``arguments``:
        versions that do not take an argument, by name and argument; ``places``: the most that each version takes by
        position, by name, where it is limited.
    """
    uses = list(uses)
    names = sorted({name for use in uses for name in accumulate(use.name.split("."), "{}.{}".format)})
    data: dict[str, Any] = {
        "versions": [],
        "missing": {name: [] for name in names},
        "unread": {},
        "arguments": {use.name: {} for use in uses if use.keyword},
        "places": {},
    }
    for version, surface in wheels:
        data["versions"].append(version)
        kinds = {name: surface.find(name) for name in names}
        for name, found in kinds.items():
            if found.kind == MISSING:
                data["missing"][name].append(version)
            elif found.kind == UNKNOWN:
                data["unread"].setdefault(name, []).append(version)
        for use in uses:
            if use.keyword:
                data["arguments"][use.name].setdefault(use.keyword, [])
            if (not use.keyword and not use.places) or kinds[use.name].kind in (MISSING, UNKNOWN):
                continue
            taken = surface.takes(use.name)
            by_hand = kinds[use.name].module.startswith(STUBS) and not (taken and taken.names - {"self"})
            if use.keyword:
                lacking = data["arguments"][use.name][use.keyword]
                known = taken is not None and not by_hand and not taken.open
                if known and taken is not None and use.keyword not in taken.names and version not in lacking:
                    lacking.append(version)
            elif (
                taken is not None and taken.most is not None and not kinds[use.name].module.startswith(STUBS)
            ):
                data["places"].setdefault(use.name, {})[version] = taken.most
    return data


def find_faults(uses: Iterable[Use], data: dict[str, Any]) -> list[str]:
    """Return what some version of torch does not have and our code takes for granted, a line for each.

    Args:
        uses: of our code.
        data: as `gather` returns it.
    """
    faults: set[str] = set()
    versions, missing = data["versions"], data["missing"]
    for use in uses:
        where = f"{use.file}:{use.line}"
        if use.name not in missing or (
            use.keyword and use.keyword not in data["arguments"].get(use.name, {})
        ):
            what = f"{use.name}({use.keyword}=)" if use.keyword else use.name
            faults.add(f"{where}: {what} is not in {DATA.name}: run python scripts/torch_surface.py")
            continue
        if missing[use.name] == versions and not use.keyword:
            faults.add(f"{where}: no torch has {use.name}")
            continue
        excused = {version for name in use.probed for version in missing.get(name, ())}
        lacking = [] if use.guarded else [each for each in missing[use.name] if each not in excused]
        if lacking:
            faults.add(f"{where}: torch {', '.join(lacking)} has no {use.name}")
        if use.keyword and not use.guarded:
            refusing = [v for v in data["arguments"][use.name][use.keyword] if v not in missing[use.name]]
            if refusing:
                faults.add(f"{where}: {use.name} of torch {', '.join(refusing)} takes no {use.keyword}")
        most = data["places"].get(use.name, {})
        few = [] if use.guarded else [version for version, count in most.items() if count < use.places]
        if few:
            faults.add(
                f"{where}: {use.name} of torch {', '.join(few)} takes fewer than {use.places} arguments"
            )
    return sorted(faults)


def main() -> None:
    """Read the wheels, write what was found, and print what is at fault and what is only probed for."""
    uses = list_ours()
    data = gather(uses, open_wheels(VERSIONS))
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    faults = find_faults(uses, data)
    for name, versions in data["missing"].items():
        if versions and versions != data["versions"]:
            print(f"not in {', '.join(versions)}: {name}")
    print("\n".join(faults) or "nothing that is used unguarded is missing")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
