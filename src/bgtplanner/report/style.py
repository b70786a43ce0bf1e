"""How pictures look: the colours of policies and references, and how a figure becomes a file."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bgtplanner.errors import ConfigError, StorageError
from bgtplanner.text import visible

if TYPE_CHECKING:  # facts can be computed where Matplotlib is not installed
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, then of Tol: colour-blind readers can tell them apart.
BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"
YELLOW = "#E69F00"

BESIDE: Mapping[str, tuple[str, Any]] = {
    "constant": (YELLOW, "--"),
    "user_mean": (GREEN, ":"),
    "client_alone": (GREY, "-."),
    "features_alone": (VERMILLION, (0, (5, 1, 1, 1, 1, 1))),
    "popularity": (YELLOW, "-"),
    "popularity_released": (BLUE, ":"),
    "random": (GREY, (0, (1, 3))),
}
"""Colour and dashes of the references."""

ABOVE: Mapping[str, Any] = {"loc": "outside upper left", "ncols": 2, "fontsize": 9}
"""Legends stand above the axes, where they hide nothing."""


class Look(NamedTuple):
    """The look of a policy in every picture: colour, and marker and dashes for print."""

    colour: str
    mark: str
    dashes: str


_LOOKS = {
    "bgt": Look(BLUE, "o", "-"),
    "late": Look(VERMILLION, "s", "--"),
    "early": Look("#332288", "d", ":"),
    "uniform": Look(GREEN, "^", "-."),
    "adpml": Look("#CC79A7", "D", ":"),
    "adap": Look(YELLOW, "v", "--"),
    "unlimited": Look(GREY, "P", ":"),
    "hong": Look("#56B4E9", "X", "-."),
    "two-phase": Look("#999933", "<", "-"),
    "random": Look("#AA4499", ">", "--"),
}
_OTHERS = ("#DDAA33", "#BB5566", "#4477AA", "#66CCEE", "#228833")


def look_of(policy: str) -> Look:
    """Return the look of a policy, the same in every picture; unknown ones get one by name.

    Example:
        >>> look_of("bgt").colour, look_of("mine:Own") == look_of("mine:Own")
        ('#0072B2', True)
    """
    number = hashlib.sha256(policy.encode()).digest()[0]
    return _LOOKS.get(policy, Look(_OTHERS[number % len(_OTHERS)], "*", "-"))


def shades(colour: str, number: int) -> list[str]:
    """Return shades of a colour, from light to dark, for one policy under several settings.

    Example:
        >>> shades("#808080", 2)
        ['#b9b9b9', '#5a5a5a']
    """
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    found = []
    for step in range(number):
        share = 0.0 if number == 1 else 0.45 - 0.75 * step / (number - 1)
        towards = 255 if share > 0 else 0
        mixed = [round(part + abs(share) * (towards - part)) for part in parts]
        found.append("#" + "".join(f"{part:02x}" for part in mixed))
    return found


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its title and its description.

    Attributes:
        name: Name of its file, without a suffix.
        title: What it shows, in a few words.
        alt: The same in words and figures, for screen readers.
        draw: Fills a figure; Matplotlib lays it out.
        size: In inches.
        note: What to know about its axes.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (4.8, 3.0)
    note: str = ""


# Placeholder colours, which a page replaces by its own.
_INK, _LINE = "#010203", "#040506"


def _style(ink: str, line: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",  # text stays text, which can be searched and read aloud
        "svg.hashsalt": "bgtplanner",  # the same run gives the same file
        "text.parse_math": False,  # a name between two dollar signs is not a formula
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": line,
        "axes.labelcolor": ink,
        "axes.axisbelow": True,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "grid.color": line,
        "grid.alpha": 0.25,
        "text.color": ink,
        "font.size": 10,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }


def _save(picture: Picture, target: Any, ink: str, line: str, **options: Any) -> None:
    """Draw a picture in these colours into a file; Matplotlib lays it out."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    outlines = {"svg.fonttype": "path"} if options.pop("outlines", False) else {}
    with mpl.rc_context(_style(ink, line) | outlines):
        figure = Figure(figsize=picture.size, layout="constrained")
        picture.draw(figure)
        figure.savefig(target, **options)


def _svg(picture: Picture, ink: str, line: str, *, outlines: bool = False) -> str:
    buffer, metadata = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    options = {"format": "svg", "transparent": True, "metadata": metadata, "outlines": outlines}
    _save(picture, buffer, ink, line, **options)
    text = visible(buffer.getvalue(), keep="\n")
    return text[text.index("<svg") :]


def as_page(picture: Picture) -> str:
    """Return the picture as SVG for a page, in the page's colours and with unique ids."""
    text = _svg(picture, _INK, _LINE).replace(_INK, "currentColor").replace(_LINE, "var(--line)")
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{picture.name}-", text)
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    # The page decides on the width.
    return re.sub(r'<svg ([^>]*?)(?: width="[^"]*"| height="[^"]*")+', r"<svg \1", text, count=1)


def as_file(picture: Picture) -> str:
    """Return the picture as SVG that is legible on a light and on a dark background."""
    return _svg(picture, GREY, GREY)


def write_pictures(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Write each picture as SVG and PNG (300 dpi), black on white, ready for a paper.

    Raises:
        ConfigError: If it is not a folder.
        StorageError: If it cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            path = folder / f"{picture.name}.svg"
            # Letters become outlines, so that no font is needed to typeset the paper.
            text = _svg(picture, "black", "#666666", outlines=True)
            path.write_text(text, encoding="utf-8")
            png = path.with_suffix(".png")
            _save(picture, png, "black", "#666666", dpi=300, facecolor="white")
            written += [path, png]
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--figures {folder}: is not a folder; choose another") from error
    except OSError as error:
        raise StorageError.of(f"--figures {folder}", error, "choose another folder") from error
    return written
