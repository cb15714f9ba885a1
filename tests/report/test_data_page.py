"""The page of a data set, and the data in the report of a run."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
from PIL import Image

from fidec.cli import main
from fidec.data import dataset_from_arrays
from fidec.report.charts import BINS, histogram
from fidec.report.dataset import write_data_page
from helpers.reports import HOSTILE, write_rich_run
from report.test_page import page_of

ROWS, STEPS = 60, 12
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(ROWS, 3)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (ROWS, 20, 30, 3)).astype(np.uint8)
ACTIONS = RNG.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
LAST = np.arange(ROWS) % STEPS == STEPS - 1


def make(observations: Any = STATES, **changes):
    return dataset_from_arrays(
        observations, ACTIONS, **({"rewards": np.ones(ROWS), "truncations": LAST, "name": "arm"} | changes)
    )


def test_every_column_has_a_histogram_and_every_camera_frames(tmp_path):
    observations = {
        "state": STATES,
        "top": IMAGES,
        "grey": IMAGES[..., :1],
        "big": np.zeros((ROWS, 600, 300, 3), np.uint8),
    }
    page = page_of(write_data_page(make(observations), tmp_path / "page.html"))
    text = " ".join(words for _, words in page.text)
    for name in ("action 0", "action 1", "state 0", "state 2", "reward", "return of an episode", "Observation: top"):
        assert name in text
    labels = [attributes.get("aria-label", "") for kind, attributes in page.elements if kind == "svg"]
    assert sum(label.startswith("histogram of") for label in labels) == 2 + 3 + 3
    images = [attributes for kind, attributes in page.elements if kind == "img"]
    assert len(images) == 3 * 6
    pictures = {each["alt"]: base64.b64decode(each["src"].partition("base64,")[2]) for each in images}
    first = np.asarray(Image.open(io.BytesIO(pictures["top, row 0"])))
    np.testing.assert_array_equal(first, IMAGES[0])
    assert Image.open(io.BytesIO(pictures["big, row 0"])).size == (96, 192)  # smaller, same shape
    # One file: nothing is fetched.
    assert all(each["src"].startswith("data:image/png;base64,") for each in images)
    assert not any("href" in attributes for _, attributes in page.elements)


def test_what_looks_wrong_is_on_the_page(tmp_path):
    broken = make(next_observations=STATES + 1, masks=np.ones(ROWS))
    text = write_data_page(broken, tmp_path / "page.html").read_text()
    assert "the next observation is not the observation of the next row" in text
    assert "<strong>Note: </strong>" in text
    assert "<strong>Note: </strong>" not in write_data_page(make(rewards=STATES[:, 0]), tmp_path / "a").read_text()


def test_data_without_rewards_has_none(tmp_path):
    text = write_data_page(make(rewards=None), tmp_path / "page.html").read_text()
    assert "return of an episode" not in text
    assert "steps of an episode" in text


def test_hostile_names_are_text(tmp_path):
    dataset = make(name=HOSTILE)
    dataset.info.update(observation_names=["hip", "knee", f"column {HOSTILE}"], action_names=["tau", "grip"])
    page = page_of(write_data_page(dataset, tmp_path / "page.html"))
    assert page.count("script") == 1
    assert any(HOSTILE in text for kind, text in page.text if kind == "h1")
    captions = " ".join(text for kind, text in page.text)
    for name in ("knee", f"column {HOSTILE}", "grip"):
        assert captions.count(name) == 2  # in the facts and over its histogram


def test_the_bars_of_a_histogram_are_the_counts():
    values = np.repeat([0.0, 10.0, 29.99], [4, 2, 1])
    drawn = histogram("x", values)
    heights = [float(height) for height in re.findall(r"v(\d[\d.]*)h", drawn.replace("v-", "v"))]
    tallest = max(heights)
    assert [round(height / tallest, 2) for height in heights] == [1.0, 0.5, 0.25]
    assert f"always {3:g}" in histogram("x", np.full(5, 3.0))
    assert BINS == 30  # the page says so


def test_many_columns_and_rows_are_shown_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("fidec.report.dataset.ROWS", 20)
    wide = make(np.zeros((ROWS, 100), np.float32) + np.arange(ROWS)[:, None])
    text = write_data_page(wide, tmp_path / "page.html").read_text()
    assert "One row in 3 is drawn. The first 60 of 100 columns." in text


def test_the_command_writes_the_page(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", observations=STATES, actions=ACTIONS, rewards=np.ones(ROWS), truncations=LAST)
    page = tmp_path / "new" / "page.html"
    assert main(["data", "show", str(tmp_path / "a.npz"), "--page", str(page)]) == 0
    assert page.is_file()
    assert "transitions" in capsys.readouterr().out
    assert main(["data", "show", str(tmp_path / "a.npz"), "--page", str(tmp_path)]) == 2


def test_the_report_of_a_run_draws_its_data_if_asked(tmp_path):
    run = write_rich_run(tmp_path / "run")
    assert main(["report", str(run), "--data"]) == 0
    text = (run / "report.html").read_text()
    assert "The data is not drawn:" in text  # this run was trained on arrays
    assert main(["report", str(run)]) == 0
    assert "The data is not drawn:" not in (run / "report.html").read_text()


def test_runs_on_the_same_data_draw_it_once(tmp_path, monkeypatch):
    for seed in (0, 1):
        write_rich_run(tmp_path / f"seed{seed}", seed=seed)
    monkeypatch.setattr("fidec.report.dataset.data_of", lambda directory: make())
    assert main(["report", str(tmp_path), "--data"]) == 0
    page = page_of(tmp_path / "report.html")
    assert sum(text.startswith("Data: ") for kind, text in page.text if kind == "h2") == 1
    assert "action 1" in " ".join(text for _, text in page.text)
