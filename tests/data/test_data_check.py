"""check_dataset reports errors that were put into good data, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from fidec.data import check_dataset, dataset_from_arrays
from fidec.data.check import Report
from fidec.data.summary import describe_dataset


def columns(episodes: int = 20, steps: int = 15) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = episodes * steps
    observations = rng.normal(size=(rows, 4)).astype(np.float32)
    ends = np.arange(rows) % steps == steps - 1
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "truncations": ends,
    }


def severities(report: Report, topic: str) -> list[str]:
    return [f.severity for f in report.findings if f.topic == topic]


def test_good_data_has_no_warning():
    report = check_dataset(dataset_from_arrays(**columns()))
    assert report.worst == "ok", report.to_text()
    text = report.to_text()
    for words in (
        "280 in 20 episodes",
        "14 to 14",
        "0 by the task (mask 0), 20 cut",
        "every next observation is",
    ):
        assert words in text
    data = json.loads(json.dumps(report.to_json()))
    assert data["worst"] == "ok"
    assert data["facts"]["episode_length"]["most_common"] == [[14, 20]]
    assert sum(count for _, count in data["facts"]["rewards"]) == 280


def test_description_counts_are_right():
    data = columns(2, 4)
    data["rewards"] = np.array([0, 0, -1, -1, 0, -1, -1, 0], np.float32)
    facts = describe_dataset(
        dataset_from_arrays(
            **data, masks=[1, 0, 1, 1, 1, 1, 1, 0], next_observations=data["observations"], name="small"
        )
    )
    assert facts["rewards"] == [["-1", 4], ["0", 4]]
    assert (facts["masked_rows"], facts["ends_of_task"], facts["ends_by_cut"]) == (2, 1, 1)
    assert facts["episode_return"] == {"min": -2.0, "mean": -2.0, "max": -2.0}
    assert facts["name"] == "small"


@pytest.mark.parametrize(
    ("change", "topic", "severity", "words"),
    [
        (lambda c: c["observations"].__setitem__((slice(None), 1), 5), "constant", "note", "(1)"),
        (lambda c: c["actions"].__setitem__((slice(None), 0), 0), "constant", "warning", "(0)"),
        (lambda c: c["actions"].__imul__(0.01), "actions", "warning", "action_low"),
        (
            lambda c: c["actions"].__setitem__(slice(None), np.sign(c["actions"])),
            "actions",
            "note",
            "on a bound",
        ),
        (lambda c: c.pop("truncations"), "episodes", "note", "one episode"),
        (lambda c: c.__setitem__("terminals", c.pop("truncations")), "terminals", "warning", "time limit"),
        (lambda c: _mark_time_limits(c), "terminals", "warning", "9 of 30 episodes have exactly 15 steps"),
        (
            lambda c: c.__setitem__("terminals", np.arange(300) % 15 == 3),
            "next state",
            "ok",
            "20 of 300 rows are used",
        ),
        (lambda c: c["truncations"].__setitem__(0, True), "next state", "warning", "1 of 300 rows are not used"),
        (lambda c: c["rewards"].__setitem__(slice(None), 1), "rewards", "warning", "every reward is 1"),
        (lambda c: c["rewards"].__imul__(1e4), "rewards", "note", "large values"),
        (lambda c: c["observations"].__imul__(1e4), "scale", "note", "scaled"),
        (lambda c: _repeat(c), "duplicates", "warning", "30 rows"),
        (lambda c: c.__setitem__("masks", np.arange(300) % 15 != 3), "masks", "note", "20 rows inside"),
        (
            lambda c: c.__setitem__("next_observations", c["observations"]),
            "next state",
            "warning",
            "280 rows",
        ),
    ],
)
def test_unusual_data_is_reported(change, topic, severity, words):
    data = columns()
    change(data)
    report = check_dataset(dataset_from_arrays(**data))
    assert any(f.severity == severity and words in f.text for f in report.findings if f.topic == topic), (
        report.to_text()
    )


def _mark_time_limits(data: dict[str, np.ndarray]) -> None:
    """Every second episode falls after 5 steps, the others reach a time limit that is marked as a task end."""
    ends = data.pop("truncations").copy()
    ends[np.arange(300) % 30 == 4] = True
    ends[-10:] = False  # the very last episode is incomplete
    data["terminals"] = ends


def _repeat(data: dict[str, np.ndarray]) -> None:
    """32 equal rows: two whole episodes of 14 transitions and one last state, and two rows of a third."""
    for key in ("observations", "actions"):
        data[key][150 : 150 + 32] = data[key][:32]


def test_non_finite_values_are_an_error():
    good = dataset_from_arrays(**columns())
    rewards = good.rewards.copy()
    rewards[7] = np.nan
    report = check_dataset(dataclasses.replace(good, rewards=rewards))
    assert report.worst == "error"
    assert "error" in severities(report, "values")
    assert "row 7" in report.to_text()


def test_ogbench_labels_are_explained():
    data = columns()
    data["rewards"] = -(np.arange(300) % 3).astype(np.float32)
    data["masks"] = data["rewards"] != 0
    made = dataset_from_arrays(**data, terminals=data.pop("truncations"), next_observations=data["observations"])
    report = check_dataset(
        dataclasses.replace(made, source="ogbench:x", info={"origin": "made", "regenerated": True, "rows": 300})
    )
    text = report.to_text()
    for words in (
        "minus the number of goals not yet met (here -2 to 0",
        "100 rows (33.3 %) solve",
        "regenerated, 300",
    ):
        assert words in text
    unsolved = dataclasses.replace(made, source="ogbench:x", masks=np.ones(300, np.float32))
    assert severities(check_dataset(unsolved), "success") == ["warning"]


def test_a_single_row_and_images_are_checked_too():
    one = dataset_from_arrays(np.zeros((1, 2)), np.zeros((1, 1)), [1.0], terminals=[1])
    assert check_dataset(one).facts["transitions"] == 1
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    pixels = dataset_from_arrays(images, np.random.default_rng(0).uniform(-1, 1, (20, 3)), np.arange(20.0))
    report = check_dataset(pixels)
    assert report.facts["observation_dtype"] == "uint8"
    assert severities(report, "duplicates") == ["ok"]
