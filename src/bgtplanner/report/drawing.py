"""How pictures look and where they go: one drawing for the page, for paper and for both.

A picture is drawn by matplotlib whenever it is asked for, in the ink of its place: on a page the
reader's own text colour, so that light and dark need no second drawing; in a file for a paper
black on white; in a file that is shown who knows where a grey that reads on both.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bgtplanner.errors import ConfigError, StorageError
from bgtplanner.text import visible

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "VERMILLION",
    "WIDE",
    "End",
    "Look",
    "Picture",
    "as_file",
    "as_page",
    "label_ends",
    "look_of",
    "mark_series",
    "series_name",
    "shades",
    "write_pictures",
]

# Okabe and Ito's colours, then Tol's: told apart by colour-blind readers too.
BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"


class Look(NamedTuple):
    """How a policy looks in every picture: a colour, and a mark and dashes for those without."""

    colour: str
    mark: str
    dashes: str


_LOOKS = {
    "patient": Look(BLUE, "o", "-"),
    "bgt": Look(VERMILLION, "s", "--"),
    "uniform": Look(GREEN, "^", "-."),
    "adpml": Look("#CC79A7", "D", ":"),
    "adap": Look("#E69F00", "v", "--"),
    "unlimited": Look(GREY, "P", ":"),
    "hong": Look("#56B4E9", "X", "-."),
    "two-phase": Look("#999933", "<", "-"),
    "random": Look("#AA4499", ">", "--"),
    "hindsight": Look("#44AA99", "p", "-."),
    "fixed": Look("#882255", "h", ":"),
}
_OTHERS = ("#DDAA33", "#BB5566", "#4477AA", "#66CCEE", "#228833")


def look_of(policy: str) -> Look:
    """The look of a policy, whatever else is in the picture; one of your own has one by its name.

    Example:
        >>> look_of("bgt").colour, look_of("mine:Own") == look_of("mine:Own")
        ('#D55E00', True)
    """
    if policy in _LOOKS:
        return _LOOKS[policy]
    number = hashlib.sha256(policy.encode()).digest()[0]
    return Look(_OTHERS[number % len(_OTHERS)], "*", "-")


def shades(colour: str, number: int) -> list[str]:
    """So many shades of a colour, from light to dark: one policy under several settings."""
    red, green, blue = mpl.colors.to_rgb(colour)
    found = []
    for step in range(number):
        share = 0.0 if number == 1 else 0.45 - 0.75 * step / (number - 1)
        towards = 1.0 if share > 0 else 0.0
        r, g, b = (part + abs(share) * (towards - part) for part in (red, green, blue))
        found.append(mpl.colors.to_hex((r, g, b)))
    return found


WIDE = (4.8, 2.9)
"""Inches: words are still read on a phone, and not too large in a paper's column."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Something to look at.

    Attributes:
        name: Of its file, without a suffix.
        title: What it shows, in a few words.
        alt: The same in words and figures, for those who do not see it.
        draw: Fills a figure.
        size: In inches.
        group: Heading under which it belongs, where there are several.
        view: Metric that it is about, where the reader may choose.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = WIDE
    group: str = ""
    view: str = ""


# Colours that nothing else has: on a page they become the reader's own.
_INK, _LINE = "#010203", "#040506"
_SOFT = "#666666"


def _style(ink: str, line: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and scaled
        "svg.hashsalt": "bgtplanner",  # the same run gives the same file
        "text.parse_math": False,  # a name between two dollar signs is no formula
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": line,
        "axes.labelcolor": ink,
        "axes.titlesize": 10,
        "axes.titlecolor": ink,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "grid.color": line,
        "text.color": ink,
        "font.size": 10,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }


def _svg(picture: Picture, ink: str, line: str, **style: Any) -> str:
    with mpl.rc_context(_style(ink, line) | style):
        buffer = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        _drawn(picture).savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = visible(buffer.getvalue(), keep="\n")
    return text[text.index("<svg") :]


def _drawn(picture: Picture) -> Figure:
    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    return figure


_SERIES = re.compile(r'<g id="series-([0-9a-z-]+?)(?:--\d+)?">')


def as_page(picture: Picture) -> str:
    """The picture as SVG to put into a page, in the page's colours and under its own ids."""
    text = _svg(picture, _INK, _LINE).replace(_INK, "currentColor").replace(_LINE, "var(--line)")
    text = _SERIES.sub(r'<g class="series" data-series="\1">', text)
    text = re.sub(r'\bid="', f'id="{picture.name}-', text)
    text = text.replace("url(#", f"url(#{picture.name}-")
    text = text.replace('xlink:href="#', f'xlink:href="#{picture.name}-')
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    # Coloured words take some of the page's ink, or they would be too faint to read.
    text = re.sub(
        r"(<text style=\"[^\"]*fill: )(#[0-9a-f]{6})",
        r"\1color-mix(in srgb, \2 55%, currentColor)",
        text,
        flags=re.I,
    )
    # Its width is the page's affair.
    return re.sub(r'<svg ([^>]*?)(?: width="[^"]*"| height="[^"]*")+', r"<svg \1", text, count=1)


def as_file(picture: Picture) -> str:
    """The picture as SVG that is shown on light or on dark paper, nobody knows which."""
    return _SERIES.sub("<g>", _svg(picture, GREY, GREY))


def write_pictures(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Write each as SVG and as PNG (300 dots an inch), black on white, ready for a paper.

    Raises:
        ConfigError: If it is no folder.
        StorageError: If it cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            # Letters as outlines: whoever typesets the paper need not have the font.
            text = _svg(picture, "black", _SOFT, **{"svg.fonttype": "path"})
            path = folder / f"{picture.name}.svg"
            path.write_text(_SERIES.sub("<g>", text), encoding="utf-8")
            with mpl.rc_context(_style("black", _SOFT)):
                _drawn(picture).savefig(path.with_suffix(".png"), dpi=300, facecolor="white")
            written += [path, path.with_suffix(".png")]
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--figures {folder}: is no folder; choose another") from error
    except OSError as error:
        raise StorageError.of(f"--figures {folder}", error, "choose another folder") from error
    return written


def mark_series(artists: Artist | Iterable[Artist], name: str) -> None:
    """Name what belongs together, so that the page can hide and show it."""
    every = [artists] if isinstance(artists, Artist) else list(artists)
    for number, artist in enumerate(every):
        artist.set_gid(f"series-{series_name(name)}--{number}")


def series_name(name: str) -> str:
    """As the page's buttons and pictures call a series."""
    return re.sub(r"[^0-9a-z]+", "-", name.lower()).strip("-") or "x"


End = tuple[float, str, str, str | None]
"""Height in data, name, colour, and the series it belongs to, if any."""


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Names beside the right end of lines, moved apart where they would lie on each other.

    Args:
        axes: Its limits must be final.
        ends: What is to be named.
    """
    low, high = axes.get_ylim()
    apart = 0.085 * 3.0 / float(axes.get_figure(root=True).get_figheight())  # type: ignore[union-attr]
    order = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for value, *_ in order:
        place = (value - low) / ((high - low) or 1.0)
        place = min(max(place, 0.0), 1.0)
        places.append(max(place, places[-1] + apart) if places else place)
    for number in range(len(places) - 1, -1, -1):  # what was pushed over the top comes down again
        most = 1.02 if number == len(places) - 1 else places[number + 1] - apart
        places[number] = min(places[number], most)
    for place, (_, name, colour, series) in zip(places, order, strict=True):
        text = axes.text(
            1.015, place, visible(name), color=colour, va="center", transform=axes.transAxes,
            fontsize=9,
        )  # fmt: skip
        if series is not None:
            mark_series(text, series)
