"""The style of pictures, how they are written, and the most common one: lines over rounds.

Matplotlib draws a picture on request, in colours that suit its destination: on a page in the
reader's text colour, so that one drawing serves light and dark; in a file for a paper in black on
white; in a file for an unknown background in a grey that is legible on both.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bgtplanner.errors import ConfigError, StorageError
from bgtplanner.report.looks import ABOVE, GREY, Drawn, series_name
from bgtplanner.text import visible

__all__ = [
    "WIDE",
    "Line",
    "Picture",
    "around",
    "around_alone",
    "as_file",
    "as_page",
    "for_page",
    "in_percent",
    "lines",
    "mark_series",
    "round_axes",
    "shades",
    "write_pictures",
]


def shades(colour: str, number: int) -> list[str]:
    """Shades of a colour, from light to dark, for one policy under several settings."""
    red, green, blue = mpl.colors.to_rgb(colour)
    found = []
    for step in range(number):
        share = 0.0 if number == 1 else 0.45 - 0.75 * step / (number - 1)
        towards = 1.0 if share > 0 else 0.0
        r, g, b = (part + abs(share) * (towards - part) for part in (red, green, blue))
        found.append(mpl.colors.to_hex((r, g, b)))
    return found


WIDE = (4.8, 2.9)
"""In inches: legible on a phone, and not too large in a column of a paper."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its title and its description.

    Attributes:
        name: Name of its file, without a suffix.
        title: What it shows, in a few words.
        alt: The same in words and figures, for screen readers.
        draw: Fills a figure.
        size: In inches.
        group: Heading under which it is shown, if there are several.
        view: Metric that it shows, if the reader can switch metrics.
        note: What to know about its axes.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = WIDE
    group: str = ""
    view: str = ""
    note: str = ""


# Placeholder colours, which a page replaces by its own.
_INK, _LINE = "#010203", "#040506"
_SOFT = "#666666"


def _style(ink: str, line: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",  # text stays text, which can be searched and read aloud
        "svg.hashsalt": "bgtplanner",  # the same run gives the same file
        "text.parse_math": False,  # a name between two dollar signs is not a formula
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
        figure = _drawn(picture)
        FigureCanvasSVG(figure)  # so that text is measured as it is drawn
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)  # left to savefig, it would take another drawing
            figure.set_layout_engine(None)
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = visible(buffer.getvalue(), keep="\n")
    return text[text.index("<svg") :]


def _drawn(picture: Picture) -> Figure:
    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    if len(figure.axes) == 1 and not figure.subfigs:
        figure.set_layout_engine(None)
        _give_room(figure.axes[0], *picture.size)
    return figure


_POINTS = 72.0  # in an inch
_EDGE = 3.0  # around everything, in points


def _give_room(axes: Axes, width: float, height: float) -> None:
    """Place the only axes of a figure, so that what is written around them fits.

    Matplotlib's own layout draws everything twice to find that out: half of the time of a picture.
    """
    font = float(mpl.rcParams["font.size"])
    axes.set_position((0.15, 0.15, 0.7, 0.75))  # about where it will be: the ticks depend on it
    left = 7.0 + max((_width(text, font) for text in _numbers(axes.yaxis)), default=0.0)
    left += 4.0 + 1.2 * font if axes.get_ylabel() else 0.0
    rows = max((text.count("\n") + 1 for text in _numbers(axes.xaxis)), default=0)
    below = 7.0 + 1.2 * rows * font + (4.0 + 1.2 * font if axes.get_xlabel() else 0.0)
    beside = [text for text in axes.texts if text.get_transform() == axes.transAxes]
    across = (width * _POINTS - left - 2 * _EDGE) or 1.0
    right = font  # for the last number below
    for text in beside:  # begins in the axes, or a little to their right
        own = _width(text.get_text(), float(text.get_fontsize()))
        right = max(right, 1.03 * own + (float(text.get_position()[0]) - 1.0) * across)
    above = 1.5 * font if axes.yaxis.get_major_formatter().get_offset() else 0.5 * font
    if (legend := axes.get_legend()) is not None:
        named = -(-len(legend.get_texts()) // ABOVE["ncols"])  # lines of names
        above = float(ABOVE["fontsize"]) * (1.0 + 1.7 * named)
    x, y = (_EDGE + left) / width / _POINTS, (_EDGE + below) / height / _POINTS
    far = 1.0 - (_EDGE + right) / width / _POINTS
    top = 1.0 - (_EDGE + above) / height / _POINTS
    axes.set_position((x, y, max(far - x, 0.2), max(top - y, 0.2)))


def _numbers(axis: Axis) -> list[str]:
    """What is written at the ticks of an axis."""
    ticks, (low, high) = axis.get_majorticklocs(), sorted(axis.get_view_interval())
    said = axis.get_major_formatter().format_ticks(ticks.tolist())
    return [text for at, text in zip(ticks, said, strict=True) if low <= at <= high]


@functools.lru_cache(maxsize=1024)
def _width(text: str, size: float) -> float:
    """How wide a text is, in points; of several lines the widest counts."""
    font, measure = FontProperties(size=size), text_to_path.get_text_width_height_descent
    return max(measure(line, font, False)[0] for line in text.split("\n"))


_SERIES = re.compile(r'<g id="series-([0-9a-z-]+?)(?:--\d+)?">')


def as_page(picture: Picture) -> str:
    """The picture as SVG for a page, in the page's colours and with unique ids."""
    text = _svg(picture, _INK, _LINE).replace(_INK, "currentColor").replace(_LINE, "var(--line)")
    text = _SERIES.sub(r'<g class="series" data-series="\1">', text)
    text = re.sub(r'\bid="', f'id="{picture.name}-', text)
    text = text.replace("url(#", f"url(#{picture.name}-")
    text = text.replace('xlink:href="#', f'xlink:href="#{picture.name}-')
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    # Coloured text is mixed with the text colour: it would be too faint otherwise.
    text = re.sub(
        r"(<text style=\"[^\"]*fill: )(#[0-9a-f]{6})",
        r"\1color-mix(in srgb, \2 55%, currentColor)",
        text,
        flags=re.I,
    )
    # The page decides on the width.
    return re.sub(r'<svg ([^>]*?)(?: width="[^"]*"| height="[^"]*")+', r"<svg \1", text, count=1)


def for_page(picture: Picture) -> Drawn:
    """The picture, drawn, with what a page says about it."""
    return Drawn(
        name=picture.name,
        title=picture.title,
        alt=picture.alt,
        svg=as_page(picture),
        group=picture.group,
        view=picture.view,
        note=picture.note,
    )


def as_file(picture: Picture) -> str:
    """The picture as SVG that is legible on a light and on a dark background."""
    return _SERIES.sub("<g>", _svg(picture, GREY, GREY))


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
            # Letters become outlines, so that no font is needed to typeset the paper.
            text = _svg(picture, "black", _SOFT, **{"svg.fonttype": "path"})
            path = folder / f"{picture.name}.svg"
            path.write_text(_SERIES.sub("<g>", text), encoding="utf-8")
            with mpl.rc_context(_style("black", _SOFT)):
                _drawn(picture).savefig(path.with_suffix(".png"), dpi=300, facecolor="white")
            written += [path, path.with_suffix(".png")]
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--figures {folder}: is not a folder; choose another") from error
    except OSError as error:
        raise StorageError.of(f"--figures {folder}", error, "choose another folder") from error
    return written


def mark_series(artists: Artist | Iterable[Artist], name: str) -> None:
    """Name artists that belong together, so that the page can hide and show them."""
    every = [artists] if isinstance(artists, Artist) else list(artists)
    for number, artist in enumerate(every):
        artist.set_gid(f"series-{series_name(name)}--{number}")


class Line:
    """A line over rounds.

    Args:
        name: Label at its right end; empty for none.
        values: One value per round, or one for all of them.
        colour: Colour of the line and of its label.
        series: Its series on the page, for hiding and showing it; empty if it always shows.
        steps: Numbers of the rounds; from 1 by default.
        start: Value before the first round; the line is then drawn in steps.
        **style: Further options of matplotlib.
    """

    def __init__(
        self,
        name: str,
        values: Sequence[float] | float,
        colour: str,
        series: str = "",
        steps: Sequence[int] = (),
        start: float | None = None,
        **style: Any,
    ) -> None:
        self.name, self.values, self.colour, self.series = name, values, colour, series
        self.steps, self.start, self.style = steps, start, style

    def draw(self, axes: Axes) -> None:
        """Draw the line; a single point gets a marker, to be visible."""
        style: dict[str, Any] = {"color": self.colour, **self.style}
        if isinstance(self.values, int | float):
            artists: Iterable[Artist] = [axes.axhline(self.values, **({"lw": 1.4} | style))]
        else:
            steps = list(self.steps or range(1, len(self.values) + 1))
            if self.start is not None:
                x, y = [0, *steps], [self.start, *self.values]
                artists = axes.step(x, y, where="post", **style)
            else:
                if len(steps) == 1:
                    style = {"marker": "o", "ms": 4} | style
                artists = axes.plot(steps, self.values, **style)
        if self.series:
            mark_series(artists, self.series)

    @property
    def end(self) -> float:
        """Its height at the right."""
        return self.values if isinstance(self.values, int | float) else float(self.values[-1])


def lines(
    drawn: Sequence[Line],
    label: str,
    *,
    total: int | None = None,
    limits: tuple[float | None, float | None] | None = None,
    percent: bool = False,
    named: bool = True,
    then: Callable[[Axes], None] | None = None,
) -> Callable[[Figure], None]:
    """Return a function that draws lines over rounds, each with its label at its end."""

    def draw(figure: Figure) -> None:
        axes = round_axes(figure, total, label)
        for line in drawn:
            line.draw(axes)
        if limits is not None:
            axes.set_ylim(*limits)
        if percent:
            in_percent(axes.yaxis)
        if then is not None:
            then(axes)
        if named:
            _label_ends(axes, [line for line in drawn if line.name])

    return draw


def in_percent(axis: Axis, decimals: int = 0) -> None:
    """Label an axis of shares in percent, at steps that need no more decimals than are shown."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))


def around(low: float, high: float, share: float) -> tuple[float, float]:
    """Limits with some room on both sides."""
    room = share * (high - low or 1)
    return low - room, high + room


_LOWEST, _HIGHEST = 0.8, 1.1  # what an axis of errors covers at least, in errors alone


def around_alone(
    values: Sequence[float], alone: float | None
) -> tuple[tuple[float, float] | None, str]:
    """Limits of an axis of errors that show small changes as small ones, and a note on them.

    They are around the error of a client alone; None if that is not known.
    """
    if not alone:
        return None, ""
    low, high = min(*values, _LOWEST * alone), max(*values, _HIGHEST * alone)
    return around(low, high, 0.04), (
        f"The axis does not start at zero. It always has room from {1 - _LOWEST:.0%} below a "
        f"client alone to {_HIGHEST - 1:.0%} above, so that a small change looks small."
    )


def round_axes(figure: Figure, total: int | None = None, label: str = "") -> Axes:
    """Axes over all planned rounds of a run, or over the rounds that are drawn."""
    axes = figure.subplots()
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    if total is not None:
        axes.set_xlim(0, total + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y", alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    return axes


def _label_ends(axes: Axes, ends: Sequence[Line]) -> None:
    """Label the right ends of lines, and move labels apart that would overlap."""
    low, high = axes.get_ylim()
    apart = 0.085 * 3.0 / float(axes.get_figure(root=True).get_figheight())  # type: ignore[union-attr]
    order = sorted(ends, key=lambda line: line.end)
    places: list[float] = []
    for line in order:
        place = min(max((line.end - low) / ((high - low) or 1.0), 0.0), 1.0)
        places.append(max(place, places[-1] + apart) if places else place)
    most = 1.02
    for number in range(len(places) - 1, -1, -1):  # what was pushed over the top comes down again
        places[number] = min(places[number], most)
        most = places[number] - apart
    for place, line in zip(places, order, strict=True):
        text = axes.text(
            1.015, place, visible(line.name), color=line.colour, va="center", fontsize=9,
            transform=axes.transAxes,
        )  # fmt: skip
        if line.series:
            mark_series(text, line.series)
