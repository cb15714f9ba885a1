"""The figures are written for every method, also for runs that are not finite."""

from __future__ import annotations

import numpy as np

from fidec.geometry import calibration, experiment
from fidec.geometry.landscapes import get
from fidec.geometry.methods import METHODS


def test_every_method_has_a_style_of_its_own():
    assert set(experiment.STYLES) == set(METHODS)
    assert len({look[1:] for look in experiment.STYLES.values()}) == len(METHODS)


def test_figures_are_written_with_samples_and_runs_that_are_not_finite(tmp_path):
    landscape = get("bimodal")
    samples = np.array([[0.45, 0.0], [0.9, 0.9], [5.0, 0.0], [np.nan, 0.0]])
    experiment.draw_samples(landscape, {"path": samples}, {"path": "value"}, tmp_path / "a.png")
    rows = [
        {"method": method, "budget": budget, "seed": 0, "value": 0.5, "kl": kl, "off": 0.1}
        for method, kl in (("path", 0.3), ("stein", np.nan), ("local", np.inf))
        for budget in (0.1, 1.0)
    ]
    experiment.draw_frontier(landscape, rows, {"value": 0.5, "off": 0.0}, tmp_path / "new" / "b.png")
    row = {"landscape": "bimodal", "constraint": "stein", "chosen": [0.9]}
    row |= calibration.compare(0.3, {"auto": 0.4, "0.8": 0.4, "0.9": 0.5, "0.99": None})
    calibration.draw([row], tmp_path / "c.png")
    for name in ("a.png", "new/b.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_calibration_compares_auto_with_the_best_fixed_time():
    row = calibration.compare(0.3, {"auto": 0.4, "0.7": 0.45, "0.9": 0.5, "0.99": None})
    assert row["best"] == "0.9"
    assert np.isclose(row["share_of_value"], 0.8)
    assert np.isclose(row["share_of_gain"], 0.5)
    for values in ({"auto": 0.4, "0.99": None}, {"auto": None, "0.9": 0.5}):
        row = calibration.compare(0.3, values)
        assert row["share_of_value"] is row["share_of_gain"] is None
