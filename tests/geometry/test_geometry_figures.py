"""The figures show what they are given, for any set of methods, and survive runs that went wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fidec.geometry import figures
from fidec.geometry.landscapes import Landscape, get


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return get("bimodal")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved, to look inside."""
    kept: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (kept.append(self), save(self, *args, **kwargs))
    )
    return kept


def rows(methods: list[str], seeds: int = 2) -> list[dict]:
    found = [{"method": "data", "budget": 0.0, "seed": 0, "value": 0.5, "kl": 0.0, "off": 0.0}]
    for i, method in enumerate(methods):
        for budget in (1.0, 0.1):  # not in order, on purpose
            for seed in range(seeds):
                value, kl = 0.5 + 0.1 * budget + 0.02 * seed, budget * 4.0 ** (seed - 0.5) * (i + 1)
                found.append(
                    {"method": method, "budget": budget, "seed": seed, "value": value, "kl": kl, "off": 0.1 * budget}
                )
    return [{"landscape": "bimodal", "unit": "nats", **row} for row in found]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_samples_get_a_panel_each_with_the_data_first(landscape: Landscape, drawn: list[Figure], tmp_path: Path):
    on = np.tile([[0.45, 0.0]], (30, 1))
    off = np.concatenate([on[:20], np.full((8, 2), 0.9), [[5.0, 0.0], [np.nan, 0.0]]])
    samples = {"path": on, "data": on, "isotropic": off, "a_new_one": on}
    path = figures.draw_samples(landscape, samples, {"isotropic": "value 0.81"}, tmp_path / "new" / "samples.png")
    image = imread(path)
    assert image.shape[0] > 600
    assert (image[0, 0] == 1).all()  # opaque white
    panels = [axes for axes in drawn[0].axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == ["data", "path", "isotropic (DeFlow)", "a new one"]
    assert {text.get_text() for text in panels[2].texts} == {"value 0.81", "6.7 % outside the frame"}
    counts = [[len(c.get_offsets()) for c in axes.collections if len(c.get_offsets()) > 1] for axes in panels[1:3]]
    assert counts[0] == [30]
    assert counts[1] == [20, 10]  # NaN is off the support


def test_a_line_goes_through_the_means_in_the_order_of_budgets(
    landscape: Landscape, drawn: list[Figure], tmp_path: Path
):
    figures.draw_frontier(landscape, rows(["path"]), tmp_path / "frontier.png")
    value, off = drawn[0].axes[:2]
    line = next(line for line in value.lines if line.get_marker() == "o")
    np.testing.assert_allclose(line.get_xdata(), [0.1, 1.0])  # the geometric mean over the two seeds
    np.testing.assert_allclose(line.get_ydata(), [0.52, 0.61])
    np.testing.assert_allclose(next(x for x in off.lines if x.get_marker() == "o").get_ydata(), [0.01, 0.1])
    assert [0.5, 0.5] in [list(line.get_ydata()) for line in value.lines]
    upright = [line.get_xdata()[0] for line in value.lines if list(line.get_ydata()) == [0, 1]]
    assert upright == [0.5, 1.0, 2.0]
    assert legend(drawn[0]) == ["path", "data"]


def test_runs_without_a_finite_kl_are_counted_not_drawn(landscape: Landscape, drawn: list[Figure], tmp_path: Path):
    bad = rows(["local", "stein"])
    for row in bad:
        if row["method"] == "stein" or row["budget"] == 1.0:
            row["kl"] = float("inf") if row["seed"] else float("nan")
    figures.draw_frontier(landscape, [row for row in bad if row["method"] != "data"], tmp_path / "frontier.png")
    assert legend(drawn[0]) == [
        "local (the paper)\n(not finite: 2 of 4 runs)",
        "stein\n(not finite: 4 of 4 runs)",
    ]


def test_every_method_has_a_style_of_its_own():
    methods = [*figures.STYLES, "other", "path_auto", "centred"]
    styles = [figures.style(method, methods) for method in methods]
    assert len({(colour, marker) for _, colour, marker in styles}) == len(methods)
    assert figures.style("path", ["path"]) == figures.style("path", methods)
    many = [f"m{i}" for i in range(20)]
    assert len({figures.style(method, many) for method in many}) == 20
