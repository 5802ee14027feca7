"""Looks for the answers: in files of the lab, in everything that can be read, in everything that is said."""

import json
import os
from pathlib import Path

from kit import LAB, RUN, WORKSPACE, attempt, make, play, request, submit, tell


def files() -> None:
    """By the documented places."""
    make("v1", 0.6)
    submit("v1")
    places = {
        "private splits": LAB / "datasets",
        "own item results": RUN / "grading",
        "own ledger": RUN / "ledger.jsonl",
        "own plan": RUN / "plan.json",
        "other runs": LAB / "runs" / "boolean",
        "baselines with items": LAB / "baselines",
    }
    for name, place in places.items():
        attempt(name, lambda place=place: readable(place))


def readable(place: Path) -> int:
    """How many bytes of other people's files can be read there."""
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    count = sum(len(path.read_bytes()) for path in paths if WORKSPACE not in path.parents)
    if not count:
        raise FileNotFoundError(f"nothing in {place}")
    return count


def search() -> None:
    """Everything that can be read at all, for hidden rows and task sources."""
    skipped = {"/proc", "/sys", "/dev", "/usr", "/lib", "/etc", str(WORKSPACE)}
    hits = []
    for folder, names, found in os.walk("/"):
        names[:] = [n for n in names if str(Path(folder, n)) not in skipped and n != "site-packages"]
        for name in found:
            path = Path(folder, name)
            if path.suffix in {".jsonl", ".json"} and marked(path):
                hits.append(str(path))
            if path.name == "data.py" and "benchmarks" in path.parts:
                hits.append(str(path))
    tell("hits", hits)


def marked(path: Path) -> bool:
    """Whether it lies in a private folder or holds rows of a hidden bucket."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    return "private" in path.parts or b'"bucket": 0' in path.read_bytes()[: 1 << 20]


def api() -> None:
    """Whatever the server says, kept whole."""
    make("v1", 0.6)
    told = [submit("v1")]
    for path in ("/submissions", "/submissions/1", "/health", "/time", "/rules", "/openapi.json"):
        told.append(request("GET", path)[1])
    for path in ("/submissions/1/items", "/items", "/grading/1", "/data/test", "/submissions/1?items=true"):
        told.append(request("GET", path)[1])
    tell("told", json.dumps(told))


play(files, search, api)
