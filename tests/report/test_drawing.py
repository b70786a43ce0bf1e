"""Colours that mean the same everywhere, and pictures for every place."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from bgtplanner.errors import ConfigError
from bgtplanner.planning.registry import POLICIES
from bgtplanner.report.drawing import (
    Line,
    Picture,
    _drawn,
    _style,
    as_file,
    as_page,
    in_percent,
    lines,
    shades,
    write_pictures,
)
from bgtplanner.report.looks import ABOVE, BLUE, look_of, series_name

LINES = [Line("bgt", [1, 2], look_of("bgt").colour, "bgt"), Line("b$d", 1.9, "#808080")]
PICTURE = Picture(name="one", title="A line", alt="From 1 to 2.", draw=lines(LINES, "height"))


class TestLooks:
    def test_every_policy_has_its_own(self) -> None:
        looks = [look_of(name) for name in POLICIES]
        assert len({look.colour for look in looks}) == len(POLICIES)
        assert len({look.mark for look in looks}) == len(POLICIES), "for those who see no colour"

    def test_told_apart_without_colour_or_with_weak_sight(self) -> None:
        """Neighbours by default differ in lightness, or at least in mark and dashes."""
        for one in ("late", "bgt", "uniform"):
            for other in ("late", "bgt", "uniform"):
                if one != other:
                    assert look_of(one)[1:] != look_of(other)[1:]

    def test_own_policies(self) -> None:
        assert look_of("mine:One") == look_of("mine:One")
        assert look_of("mine:One").colour not in {look_of(name).colour for name in POLICIES}

    def test_shades(self) -> None:
        assert len(set(shades("#0072B2", 5))) == 5
        light = [sum(to_rgb(shade)) for shade in shades("#0072B2", 5)]
        assert light == sorted(light, reverse=True)


class TestPage:
    def test_in_the_pages_colours(self) -> None:
        text = as_page(PICTURE)
        assert text.startswith("<svg")
        assert "currentColor" in text
        assert "var(--line)" in text
        assert "#010203" not in text
        assert not re.search(r"<svg[^>]*\b(width|height)=", text)

    def test_series_can_be_found(self) -> None:
        text = as_page(PICTURE)
        assert len(re.findall(r'class="series" data-series="bgt"', text)) == 2
        assert 'id="series' not in text

    def test_ids_are_its_own(self) -> None:
        text = as_page(PICTURE)
        for found in re.findall(r'\bid="([^"]*)"', text) + re.findall(r"url\(#([^)]*)\)", text):
            assert found.startswith("one-")

    def test_the_same_each_time(self) -> None:
        assert as_page(PICTURE) == as_page(PICTURE)

    @pytest.mark.parametrize(
        ("name", "slug"), [("bgt", "bgt"), ("budget ε 3", "budget-3"), ("ε", "x"), ("a:B", "a-b")]
    )
    def test_series_name(self, name: str, slug: str) -> None:
        assert series_name(name) == slug


class TestFiles:
    def test_for_any_paper(self) -> None:
        text = as_file(PICTURE)
        assert "#808080" in text
        assert "currentColor" not in text
        assert "series-" not in text

    def test_for_a_paper(self, tmp_path: Path) -> None:
        written = write_pictures([PICTURE], tmp_path / "a" / "b")
        assert [path.name for path in written] == ["one.svg", "one.png"]
        svg, png = written[0].read_text(), written[1].read_bytes()
        assert "<text" not in svg, "letters as outlines"
        assert look_of("bgt").colour.lower() in svg.lower()
        assert png.startswith(b"\x89PNG")
        assert int.from_bytes(png[16:20], "big") == round(300 * PICTURE.size[0])

    def test_nowhere_to_write(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"--figures .*/file: is not a folder; choose"):
            write_pictures([PICTURE], tmp_path / "file")


def _with_legend(axes: Axes) -> None:
    for name in ("one", "two", "three", "four of them"):
        axes.plot([1, 2], [1, 2], label=name)
    axes.legend(**ABOVE)


def _with_names(axes: Axes) -> None:
    axes.set_yticks([1, 2], ["up to sixteen ratings", "more"])


def _in_two_lines(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g}\n{at:g} stars")


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.set_ylim(1e-6, 2e4)


WRITTEN = {
    "plain": lines([Line("", [1, 2], BLUE)], "height"),
    "ends": lines([Line("a line with a very long name", [1, 2], BLUE)], "height"),
    "numbers": lines([Line("", [1_000_001.25, 1_000_001.5], BLUE)], "", total=1000),
    "percent": lines([Line("", [0.1, 1.0], BLUE)], "height", percent=True),
    "legend": lines([Line("", [1, 2], BLUE)], "height", then=_with_legend),
    "names": lines([Line("", [1, 2], BLUE)], "height", then=_with_names),
    "two lines": lines([Line("", [1, 2], BLUE)], "height", then=_in_two_lines),
    "logarithmic": lines([Line("the end", [1, 2], BLUE)], "height", then=_logarithmic),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_all_that_is_written_is_in_the_picture(name: str) -> None:
    """Judged by matplotlib's own measure, and about as large as by its own layout."""
    picture = Picture(name=name, title="", alt="", draw=WRITTEN[name])
    with mpl.rc_context(_style("black", "black")):
        found, theirs = _drawn(picture), Figure(figsize=picture.size, layout="constrained")
        picture.draw(theirs)
        canvas = FigureCanvasAgg(found)
        written = found.get_tightbbox(canvas.get_renderer())
        FigureCanvasAgg(theirs).draw()
    (left, below), (right, top) = written.get_points()
    assert left > 0
    assert below > 0
    assert right < picture.size[0]
    assert top < picture.size[1]
    (ours,), (other,) = ([axes.get_position() for axes in each.axes] for each in (found, theirs))
    assert ours.width > 0.92 * other.width
    assert ours.height > 0.92 * other.height


@pytest.mark.parametrize("high", [0.03, 0.13, 0.16, 1.0])
def test_percents_are_not_rounded(high: float) -> None:
    axes = Figure().subplots()
    axes.set_ylim(0, high)
    in_percent(axes.yaxis, decimals=0 if high > 0.05 else 1)
    ticks = axes.yaxis.get_majorticklocs()
    said = axes.yaxis.get_major_formatter().format_ticks(ticks.tolist())
    assert [float(text.rstrip("%")) for text in said] == pytest.approx((100 * ticks).tolist())


def test_labels_do_not_lie_on_each_other() -> None:
    figure = Figure()
    every = [Line(name, 0.5, "#000000") for name in "abcdef"] + [Line("x", 9.0, "#000000")]
    lines(every, "", limits=(0, 1))(figure)
    (axes,) = figure.axes
    places = sorted(float(text.get_position()[1]) for text in axes.texts)
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert min(gaps) > 0.04
    assert places[-1] <= 1.03
