"""Which code an iteration had: what was noted at its submissions, or what lay before and after it."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.script import Script, is_named, names_in, spoken_of
from posttrain.reports.summaries.text import Document, Section
from posttrain.reports.summaries.timing import Timeline


class Versions:
    """The code as it was in an iteration: each version a set of files."""

    def __init__(self, document: Document, facts: Facts, line: Timeline) -> None:
        self._document = document
        self._facts = facts
        self._line = line
        self._kept: dict[tuple[tuple[str, ...], int], list[Script]] = {}

    def of(self, section: Section) -> tuple[list[list[Script]], bool]:
        """The versions it may mean, and whether it must be one of these."""
        words = section.text()
        own = self._at_submissions(section)
        if own:
            return [self._chosen(words, scripts) for scripts in own], True
        around = self._around(section)
        chosen = [self._chosen(words, scripts) for scripts in around]
        return chosen, self._certain(section, chosen)

    def _chosen(self, words: str, scripts: Sequence[Script]) -> list[Script]:
        """The scripts that a section means; sections mostly mean the same."""
        key = (tuple(names_in(words)), id(scripts))
        if key not in self._kept:
            self._kept[key] = spoken_of(words, scripts)
        return self._kept[key]

    def _at_submissions(self, section: Section) -> list[Sequence[Script]]:
        window = self._line.of(section)
        own = {entry.number for entry in window.candidates} if window is not None else set()
        return [moment.scripts for moment in self._facts.moments if moment.number in own and moment.scripts]

    def _around(self, section: Section) -> list[Sequence[Script]]:
        """The last version before the iteration's end, the next after it, and the code as it is."""
        window = self._line.of(section)
        times = {entry.number: entry.at for entry in self._facts.handed}
        before: list[Sequence[Script]] = []
        after: list[Sequence[Script]] = []
        for moment in self._facts.moments:
            if not moment.scripts:
                continue
            late = window is not None and times.get(moment.number, 0.0) > window.end
            (after if late else before).append(moment.scripts)
        found = [*before[-1:], *after[:1]]
        return [*found, *([] if after else [self._facts.scripts])] or [self._facts.scripts]

    def _certain(self, section: Section, versions: Sequence[Sequence[Script]]) -> bool:
        """Whether the code cannot have been another then: nothing came after, or nothing changed."""
        if section is self._document.sections[-1] or self._its_own(section):
            return True
        window = self._line.of(section)
        scripts = versions[-1] if versions else []
        if (
            window is not None
            and scripts
            and all(script.changed is not None and script.changed <= window.end for script in scripts)
        ):
            return True
        different = {tuple((script.name, script.text) for script in version) for version in versions}
        return len(versions) > 1 and len(different) == 1

    def _its_own(self, section: Section) -> bool:
        """Whether it names scripts that no later section means: nothing speaks for a later change."""
        scripts = self._facts.scripts
        named = {script.name for script in self._named(section, scripts)}
        if not named:
            return False
        place = self._document.sections.index(section)
        later = (self._chosen(other.text(), scripts) for other in self._document.sections[place + 1 :])
        return not any(script.name in named for chosen in later for script in chosen)

    def _named(self, section: Section, scripts: Sequence[Script]) -> list[Script]:
        names = names_in(section.text())
        return [script for script in scripts if any(is_named(script, name) for name in names)]
