"""Everything that a reader shall see of a run or a study, as one object.

:mod:`bgtplanner.report.run` and :mod:`bgtplanner.report.study` compute it; page, terminal and
notebook only lay it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bgtplanner.report.pictures import Picture
from bgtplanner.text import Table


class Section(NamedTuple):
    """A part of a report: heading, paragraphs, pictures, tables.

    Attributes:
        promise: Whether its words are a promise that is kept (True) or less than one (False).
        code: What to type.
        unfold: Something long that is shown on request.
    """

    heading: str
    words: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    promise: bool | None = None
    code: str = ""
    unfold: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is shown of a run or a study: the result in a sentence, and sections.

    Attributes:
        kind: ``run``, ``comparison`` or ``sweep``.
        about: What was run, in a line.
        state: ``finished``, ``running`` or ``stopped``.
        progress: How many rounds or cells are done, and how many there will be.
    """

    kind: str
    about: str
    headline: str
    lead: Sequence[str] = ()
    sections: Sequence[Section]
    state: str
    progress: tuple[int, int]
