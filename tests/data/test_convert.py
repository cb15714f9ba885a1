"""`fidec data convert`: what is written reads back with the same hash, or the result says what was lost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fidec.cli import main
from fidec.data import dataset_from_arrays, load_dataset
from fidec.data.convert import FORMATS, convert
from fidec.data.convert.rows import user_actions
from fidec.errors import ConfigError, DataError, RunError

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[tables]'")

ROWS, STEPS = 48, 12
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(ROWS, 4)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (ROWS, 8, 10, 3)).astype(np.uint8)
ACTIONS = RNG.uniform(-2, 3, (ROWS, 2)).astype(np.float32)
ACTIONS[3:5] = [[3.0, -2.0], [-2.0, 3.0]]  # at the bounds
REWARDS = RNG.normal(size=ROWS).astype(np.float32)
TIME = np.arange(ROWS) % STEPS
LAST = TIME == STEPS - 1
SOLVED = LAST & (np.arange(ROWS) < ROWS // 2)


def make(observations: Any = STATES, **changes):
    given = {
        "rewards": REWARDS,
        "terminals": SOLVED,
        "truncations": LAST & ~SOLVED,
        "action_low": -2,
        "action_high": 3,
    }
    return dataset_from_arrays(observations, ACTIONS, **(given | changes))


def out(tmp_path, to: str):
    return tmp_path / ("made.npz" if to == "npz" else "made-v0")


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    "observations", [STATES, IMAGES, {"state": STATES, "top": IMAGES}], ids=["vectors", "images", "both"]
)
def test_a_format_that_holds_everything_keeps_the_hash(tmp_path, monkeypatch, to, observations):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    before = make(observations)
    made = convert(before, to, out(tmp_path, to))
    assert made.sha256_after == made.sha256_before == before.sha256
    assert made.lost == ()
    bounds: dict[str, Any] = {"action_low": -2, "action_high": 3} if to == "lerobot" else {}
    assert load_dataset(made.source, **bounds).sha256 == before.sha256
    assert ("--action-low -2 -2" in str(made.notes)) == (to == "lerobot")
    assert [path.name for path in tmp_path.iterdir() if path.name != out(tmp_path, to).name] == []


@pytest.mark.parametrize(
    ("changes", "minari", "lerobot"),
    [
        ({"rewards": None}, "there are no rewards", None),
        (
            {"terminals": LAST, "truncations": None, "masks": TIME != 5},
            "masks: 4 rows inside",
            "masks: 4 rows inside",
        ),
    ],
)
def test_what_a_format_cannot_hold_is_said(tmp_path, changes, minari, lerobot):
    before = make(**changes)
    for to, words in (("npz", None), ("minari", minari), ("lerobot", lerobot)):
        made = convert(before, to, out(tmp_path, to), overwrite=True)
        assert (made.sha256_after == made.sha256_before) == (words is None)
        assert words is None or words in made.lost[0]


def test_next_states_that_are_no_rows_need_npz(tmp_path):
    before = make(next_observations=STATES + 1)
    assert convert(before, "npz", tmp_path / "made.npz").sha256_after == before.sha256
    for to in ("minari", "lerobot"):
        with pytest.raises(DataError, match="in 44 rows the next state is not the next row"):
            convert(before, to, out(tmp_path, to))
        assert not out(tmp_path, to).exists()


def test_the_state_after_the_end_of_the_task_is_lost_in_lerobot_alone(tmp_path):
    episodes = [np.arange(4 * i, 4 * i + 4)[:, None] for i in range(3)]  # one state more than actions
    before = dataset_from_arrays(episodes, [np.zeros((3, 1))] * 3, [[0, 0, 1]] * 3, [[0, 0, 1]] * 3)
    for to in ("npz", "minari"):
        assert convert(before, to, out(tmp_path, to), overwrite=True).sha256_after == before.sha256
    made = convert(before, "lerobot", out(tmp_path, "lerobot"), overwrite=True)
    assert "the state after the end of the task, in 3 episodes" in made.lost[0]


def test_images_larger_than_a_block_are_written_in_parts(tmp_path, monkeypatch):
    before = make({"state": STATES, "top": IMAGES})
    monkeypatch.setattr("fidec.data.convert.rows.BLOCK_BYTES", 1000)
    for to in FORMATS:
        assert convert(before, to, out(tmp_path, to), overwrite=True).sha256_after == before.sha256


@pytest.mark.parametrize(
    ("low", "high"), [(-2.0, 3.0), (0.0, 100.0), (1000.0, 1001.0), (-1e-3, 7e-4), (-np.pi, np.pi)]
)
def test_actions_in_the_users_units_give_the_same_bits(low, high):
    actions = np.random.default_rng(0).uniform(low, high, (20_000, 2)).astype(np.float32).clip(low, high)
    states, cut = np.zeros((20_000, 1)), np.arange(20_000) % 10 == 9
    before = dataset_from_arrays(states, actions, truncations=cut, action_low=low, action_high=high)
    bounds: dict[str, Any] = {"action_low": before.action_low, "action_high": before.action_high}
    again = dataset_from_arrays(before.observations, user_actions(before), truncations=before.terminals, **bounds)
    np.testing.assert_array_equal(again.actions, before.actions[~before.terminals])


def test_minari_itself_reads_it(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="minari is not installed: pip install 'fidec[minari]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    convert(make({"state": STATES, "top": IMAGES}), "minari", tmp_path / "lab" / "arm-v3")
    found = minari.load_dataset("lab/arm-v3")
    assert (found.total_episodes, found.total_steps) == (4, 4 * STEPS - 2)
    assert (found.action_space.low == -2).all()
    first, last = found[0], found[3]
    assert len(first.observations["state"]) == len(first.actions) + 1 == STEPS + 1
    np.testing.assert_array_equal(first.observations["top"][:STEPS], IMAGES[:STEPS])
    np.testing.assert_allclose(first.actions, ACTIONS[:STEPS], atol=1e-6)
    assert first.terminations.tolist() == [False] * (STEPS - 1) + [True]
    assert last.truncations[-1]
    assert not last.terminations.any()


def test_nothing_is_replaced_unless_asked_for(tmp_path):
    before = make()
    for to in FORMATS:
        path = out(tmp_path, to)
        convert(before, to, path, overwrite=True)
        with pytest.raises(ConfigError, match=r"exists\. Give --overwrite"):
            convert(before, to, path)
        convert(make(rewards=-REWARDS), to, path, overwrite=True)
    with pytest.raises(ConfigError, match="is a file, which a data set of this format cannot replace"):
        convert(before, "lerobot", tmp_path / "made.npz", overwrite=True)
    with pytest.raises(ConfigError, match=r"expected a file that ends with \.npz"):
        convert(before, "npz", tmp_path / "made")
    with pytest.raises(ConfigError, match="Minari needs a name with a version, such as made-v0"):
        convert(before, "minari", tmp_path / "made")


@pytest.mark.parametrize("to", FORMATS)
def test_a_failure_leaves_the_old_data(tmp_path, monkeypatch, to):
    path = out(tmp_path, to)
    convert(make(), to, path)
    before = sorted(p.name for p in tmp_path.rglob("*"))

    def broken(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fidec.data.convert.rows.Rows.observed", broken)
    monkeypatch.setattr("fidec.data.convert.minari.write_json", broken)
    with pytest.raises(RunError, match="the disk is full: could not write the converted data"):
        convert(make(), to, path, overwrite=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_the_command_prints_hashes_and_what_was_lost(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", observations=STATES, actions=ACTIONS / 3, terminals=LAST, masks=TIME != 5)
    source = f"npz:{tmp_path / 'a.npz'}"
    assert main(["data", "convert", source, "--to", "minari", "--out", str(tmp_path / "b-v0")]) == 0
    text = capsys.readouterr().out
    assert "sha256 before" in text
    assert "lost            masks: 4 rows" in text
    assert main(["data", "convert", source, "--to", "npz", "--out", str(tmp_path / "c.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sha256_before"] == found["sha256_after"]
    assert main(["data", "convert", source]) == 2


def test_bounds_can_be_given_to_show_check_and_convert(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", observations=STATES, actions=ACTIONS, rewards=REWARDS, truncations=LAST)
    source = str(tmp_path / "a.npz")
    assert main(["data", "show", source]) == 1
    assert "--action-low" in capsys.readouterr().err
    for command in ("show", "check"):
        assert main(["data", command, source, "--action-low", "-2", "--action-high", "3"]) == 0
