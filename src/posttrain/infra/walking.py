"""Walking through folders that others have filled: no recursion, no link followed, no endless name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST = 1500
"""Bytes of a folder's name below the root: a whole path of 4096 cannot be opened."""


@dataclass
class Listing:
    """One folder; nothing in it was opened."""

    folder: Path
    """Relative to the root."""
    folders: list[str]
    """Real ones. Those that the caller takes out are not entered."""
    others: list[str]
    """Everything else, links to folders too."""
    too_deep: bool = False
    """The name is longer than LONGEST, so nobody looked what it holds."""


def walk(root: Path) -> Iterator[Listing]:
    """All folders from `root` down, in order of their names, each before what is in it.

    One that cannot be listed is empty. How much depth is too much does not depend on where the root lies.
    """
    waiting = [Path()]
    while waiting:
        folder = waiting.pop()
        if len(os.fsencode(folder)) > LONGEST:
            yield Listing(folder, [], [], too_deep=True)
            continue
        listing = _listed(root, folder)
        yield listing
        waiting += [folder / name for name in sorted(listing.folders, reverse=True)]


def _listed(root: Path, folder: Path) -> Listing:
    listing = Listing(folder, [], [])
    try:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                (listing.folders if is_folder else listing.others).append(entry.name)
    except OSError:
        return Listing(folder, [], [])
    listing.folders.sort()
    listing.others.sort()
    return listing
