"""Pictures: which are drawn for which data, what they show, and what a reader sees who hovers over them."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from isocompute_jax.fit.report.figures import DRAWINGS, curves, draw_figures, series, style
from isocompute_jax.fit.report.figures.style import (
    PALETTE,
    draw_all,
    hover,
    log_axis,
    panels,
    picked,
    save_figure,
    shades,
)
from isocompute_jax.fit.results import Segment
from tests.fit.sweeps import alone, pictures, put, put_all, rich, unidentified

SVG = "{http://www.w3.org/2000/svg}"


def figure_of(draw, summary) -> Figure:
    figure = draw(summary)
    assert figure is not None
    return figure


def possible(summary) -> set[str]:
    return {name for name, draw in DRAWINGS.items() if draw(summary) is not None}


@pytest.mark.slow
def test_rich_data_have_every_picture_as_svg_and_png(tmp_path):
    drawn = draw_figures(rich(), tmp_path, png=True)
    assert set(drawn) == set(DRAWINGS)
    for path in drawn.values():
        assert ElementTree.fromstring(path.read_bytes()).tag == f"{SVG}svg"
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_poor_data_leave_pictures_out():
    one = alone(rich(), "n = 8, B = 16")
    assert possible(one) == {"learning_curves", "profiles", "residuals", "forms", "holdout"}
    one = put(put(one, "curves.0", profile=None, holdouts={}), "curves.0.fit", noise=np.nan)
    one = put(one, "", forms={name: dataclasses.replace(row, aicc=np.nan) for name, row in one.forms.items()})
    assert possible(one) == {"learning_curves"}
    one = put(one, "curves.0.fit", status="failed", params=dict.fromkeys(one.curves[0].fit.params, np.nan))
    assert possible(one) == {"learning_curves"}


@pytest.mark.slow
def test_solve_rates_of_a_single_evaluation_span_no_area():
    result = rich()
    short = {
        configuration: {name: curve.only(np.arange(2)) for name, curve in series.items()}
        for configuration, series in result.training.items()
    }
    result = put(result, "", training=short)
    assert curves.solve_rates(rich()) is not None
    assert curves.solve_rates(result) is None  # the base model's, and one after it


@pytest.mark.slow
def test_unknown_group_sizes_are_told_apart_by_name():
    summary = put_all(rich(), "curves", "configuration", group_size=0, problems_per_batch=0)
    summary = put(summary, "", slices=())
    missing = {"optimal_group_size", "targets", "batches", "slices_by_problems", "slices_by_rollouts"}
    assert possible(summary) == set(DRAWINGS) - missing
    colours = style.colours(summary)
    assert len({tuple(colour) for colour in colours.values()}) == len(colours) == 6
    assert [handle.get_label() for handle in style.handles(summary)] == list(colours)


def test_unknown_steps_leave_the_pictures_over_steps_out():
    summary = rich()
    assert {"batches", "slices_by_rollouts"} <= possible(summary)
    summary = put(summary, f"frontier.budgets.{len(summary.frontier.budgets) - 1}", num_steps=None)
    for i, part in enumerate(summary.slices):
        summary = put(summary, f"slices.{i}.budgets.{len(part.budgets) - 1}", num_steps=None)
    assert set(DRAWINGS) - possible(summary) == {"batches", "slices_by_rollouts"}


def test_of_many_unknown_configurations_the_frontier_is_named():
    base = rich().curves[0]
    many = tuple(put(base, "configuration", name=f"run {i}", group_size=0) for i in range(30))
    summary = put(rich(), "", curves=many)
    summary = put(summary, "frontier", segments=(Segment(many[7].configuration, 1e4, 1e6),))
    assert [handle.get_label() for handle in style.handles(summary)] == ["run 7", "never on the frontier"]
    assert style.colours(summary)["run 7"] != style.colours(summary)["run 8"]


def test_learning_curves_have_a_panel_for_each_batch():
    figure = curves.learning_curves(rich())
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["B_problem = 16", "B_problem = 64"]
    assert figure.axes[0].get_xscale() == "log"
    dots = sum(len(np.asarray(collection.get_offsets())) for axes in figure.axes for collection in axes.collections)
    assert dots == 6 * 12  # every evaluation but the base model's


def test_the_sigmoid_is_dashed_where_it_is_not_established():
    summary = rich()

    def looks(status: str) -> str:
        drawn = put(summary, "allocation", status=status)
        axes = figure_of(curves.optimal_group_size, drawn).axes[0]
        return str(next(line for line in axes.lines if str(line.get_label()).startswith("sigmoid")).get_linestyle())

    assert looks("ok") == "-"
    assert looks("warning") == "--"


def test_an_unidentified_asymptote_has_a_dashed_profile_without_a_dot():
    def dots(summary) -> int:
        return sum(len(axes.collections) for axes in figure_of(series.profiles, summary).axes)

    summary = rich()
    known = sum(curve.identified() for curve in summary.curves)
    assert dots(summary) == known > 0
    assert dots(unidentified(rich())) == 0


def test_no_picture_writes_an_unidentified_estimate():
    summary = unidentified(rich())
    drawn = {name: draw(summary) for name, draw in DRAWINGS.items()}
    assert [name for name, figure in drawn.items() if figure is None] == ["comparison"]
    for figure in filter(None, drawn.values()):
        texts = [text.get_text() for text in figure.findobj(Text)] + [a.get_gid() or "" for a in figure.findobj()]
        assert not any("0.98" in text for text in texts)


def test_residuals_are_in_units_of_the_noise():
    summary = rich()
    curve = summary.curves[0]
    panel = figure_of(series.residuals, summary).axes[0]
    points = np.concatenate([np.asarray(c.get_offsets()).reshape(-1, 2) for c in panel.collections])
    compute, reward = (curve.points.compute[1:], curve.points.reward[1:])
    p = curve.fit.params
    fitted = p["floor"] + (p["asymptote"] - p["floor"]) / (1 + (p["midpoint"] / compute) ** p["steepness"])
    np.testing.assert_allclose(sorted(points[:, 1]), sorted((reward - fitted) / curve.fit.noise), rtol=1e-6)


def test_an_interval_in_epochs_is_drawn_where_there_is_one():
    def bars(summary) -> int:
        (axes,) = figure_of(curves.switch_epochs, summary).axes
        return sum(line.get_linewidth() == 5 for line in axes.lines)

    summary = rich()
    assert bars(summary) == len(summary.frontier.switches) > 0
    assert bars(put_all(summary, "frontier.switches", epoch_interval95=None)) == 0


def test_hovering_shows_each_point_and_each_line(tmp_path):
    figure, (axes,) = panels()
    hover(axes.scatter([1, 2, 3], [1, 2, 3]), ["first", 'a "second" & <more>', "third"])
    (line,) = axes.plot([1, 3], [1, 3])
    hover(line, ["the line"])
    root = ElementTree.fromstring(save_figure(figure, tmp_path / "figure.svg").read_bytes())
    assert [title.text for title in root.iter(f"{SVG}title")] == ["first", 'a "second" & <more>', "third", "the line"]
    assert "hover:" not in (tmp_path / "figure.svg").read_text()


@pytest.mark.slow
def test_every_evaluation_has_a_text():
    drawn = pictures()
    titles = re.findall(r"<title>(n = 8, B = 16: [^<]*)</title>", drawn["learning_curves"].read_text())
    reward = rich().curves[0].points.reward
    assert f"n = 8, B = 16: {reward[1]:.3f} at 10,000" in titles and len(titles) == 12


@pytest.mark.slow
def test_the_same_summary_gives_the_same_files(tmp_path):
    again = draw_all({"forms": curves.forms}, rich(), tmp_path)
    assert again["forms"].read_bytes() == pictures()["forms"].read_bytes()


def test_drawing_leaves_global_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    draw_figures(alone(rich(), "n = 8, B = 16"), tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_helpers():
    assert picked(list(range(10)), 3) == [0, 4, 9] and picked([1, 2], 3) == [1, 2]
    assert shades([4, 64, 16, 16]) == {4: PALETTE(0.0), 16: PALETTE(0.5), 64: PALETTE(1.0)}
    assert shades([8]) == {8: PALETTE(0.0)}


def test_a_short_logarithmic_axis_has_plain_numbers():
    figure, (axes,) = panels()
    axes.plot([1.2e6, 4.4e6], [0, 1])
    log_axis(axes)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert {"1.5M", "2M", "3M"} <= set(labels)
