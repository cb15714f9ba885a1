"""`python -m benchmarks.table`: the order of its runs, continuation, the rules of its data, and the printed table."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from benchmarks import table

from fidec.data import dataset_from_arrays
from fidec.data.source import load_dataset
from fidec.errors import BusyError, ConfigError, DataError, RunError

CUBE, PUZZLE, HAMMER = table.TASKS[0], table.TASKS[3], "hammer-expert-v1"
METHODS = ("flow_bc", "fql")


def next_task(task: str, number: int) -> str:
    return f"{task.rpartition('-task')[0]}-task{number}-v0"


def data(solved: int, first: float = 0.0):
    """200 rows, of which so many are full successes."""
    masks = np.ones(200, np.float32)
    masks[:solved] = 0
    columns = {"observations": np.full((200, 2), first), "actions": np.zeros((200, 1)), "rewards": masks - 1}
    return dataset_from_arrays(**columns, terminals=masks == 0, truncations=np.arange(200) == 199)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs without training: what was trained and played, and the data of each task."""
    done, found = [], dict.fromkeys(table.TASKS, data(150))

    def train(cell, updates, directory, data_dir):
        if cell in failing:
            raise RunError("the loss is not finite")
        done.append((*cell, updates))
        return 60.0

    failing = set()
    monkeypatch.setattr(table, "METHODS", METHODS)
    monkeypatch.setattr(table, "provide", lambda *_: tmp_path / "data")
    monkeypatch.setattr(table, "load_dataset", lambda source, **_: found[source.partition(":")[2]])
    monkeypatch.setattr(table, "train", train)
    monkeypatch.setattr(table, "play", lambda cell, episodes, noise, directory: [100.0] + [0.0] * (episodes - 1))
    monkeypatch.setattr(table, "versions", lambda directory: {})
    return done, found, failing


def run(tmp_path: Path, *words: str) -> list[table.Row]:
    rows = tmp_path / "rows.jsonl"
    assert table.main(["--work", str(tmp_path), "--rows", str(rows), *words]) == 0
    return table.read_rows(rows)


def test_task_by_task_method_by_method_seed_by_seed(machine, tmp_path):
    rows = run(tmp_path)  # the data of the hands has no success here
    done, *_ = machine
    cells = [(task, method, seed) for task in table.TASKS[:6] for method in METHODS for seed in (0, 1)]
    assert list(dict.fromkeys(each[:3] for each in done)) == cells
    assert done[:3] == [(CUBE, "flow_bc", 0, updates) for updates in (12_500, 25_000, 50_000)]
    assert done[6:9] == [(CUBE, "fql", 0, updates) for updates in (25_000, 50_000, 100_000)]
    first = [(row["updates"], row["noise"], len(row["scores"])) for row in rows[:6]]
    assert first == [(u, noise, n) for u, n in ((12_500, 20), (25_000, 20), (50_000, 50)) for noise in (1, 0)]


def test_only_what_is_missing_is_run(machine, tmp_path):
    rows = run(tmp_path, "--tasks", "cube-single*")
    done, *_ = machine
    done.clear()
    assert run(tmp_path, "--tasks", "cube-single*") == rows
    assert not done
    lost = [row for row in rows if row["method"] == "fql" and row["seed"] == 0 and row["updates"] > 25_000]
    kept = [row for row in rows if row not in lost]
    table.write_rows(tmp_path / "rows.jsonl", kept)
    assert run(tmp_path, "--tasks", "cube-single*") == [*kept, *lost]
    assert done == [(CUBE, "fql", 0, 50_000), (CUBE, "fql", 0, 100_000)]


def test_a_run_that_fails_is_named_and_the_others_go_on(machine, tmp_path, capsys):
    _, _, failing = machine
    failing.add((CUBE, "flow_bc", 1))
    with pytest.raises(RunError, match=rf"1 runs failed.*{CUBE} flow_bc 1"):
        run(tmp_path, "--tasks", "cube-single*")
    assert "not finite" in capsys.readouterr().err
    assert len(table.read_rows(tmp_path / "rows.jsonl")) == 6 + 3 + 3


def test_a_task_with_too_few_successes_is_replaced_by_the_next_number(machine, tmp_path):
    _, found, _ = machine
    found |= {PUZZLE: data(99), next_task(PUZZLE, 5): data(99), next_task(PUZZLE, 1): data(100)}
    rows = run(tmp_path, "--tasks", "puzzle*")
    assert {(row["task"], row["successes"]) for row in rows} == {(next_task(PUZZLE, 1), 100)}
    assert table.candidates(CUBE) == [next_task(CUBE, number) for number in (5, 1, 3, 4)]  # 2 is a design task


def test_rows_of_other_data_are_refused_unless_they_are_accepted(machine, tmp_path):
    _, found, _ = machine
    rows = run(tmp_path, "--tasks", "cube-single*")
    found[CUBE] = data(150, first=1.0)
    assert run(tmp_path, "--tasks", "cube-single*") == rows  # nothing is missing
    words = ("--tasks", "cube-single*", "--seeds", "2")
    with pytest.raises(DataError, match=f"{rows[0]['data'][:12]}.*{found[CUBE].sha256[:12]}.*--accept-data"):
        run(tmp_path, *words)
    assert len({row["data"] for row in run(tmp_path, *words, "--accept-data")}) == 2


def test_no_task_begins_after_the_hours(machine, tmp_path):
    assert not run(tmp_path, "--hours", "0")


def test_one_runner_at_a_time(machine, tmp_path):
    with table.alone_in(tmp_path), pytest.raises(BusyError, match="another process"):
        run(tmp_path)


def test_unknown_tasks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cube-triple"):
        run(tmp_path, "--tasks", "cube-triple*")


def test_tasks_without_published_options_take_the_lenders(tmp_path):
    def options(task: str, method: str) -> list[str]:
        words = table.arguments(table.Cell(task, method, 0), 10, None)
        return [word for word in words if word.startswith("--algo.")]

    shared = ["--algo.hidden", "--algo.learning-rate"]
    assert options(CUBE, "fql") == shared
    assert options(table.TASKS[4], "fql") == ["--algo.discount", "--algo.q-aggregate", "--algo.alpha", *shared]


def test_a_hands_file_is_read_as_d4rls(tmp_path):
    rows = 40
    arrays = {
        "observations": np.random.default_rng(0).normal(size=(rows, 46)).astype(np.float32),
        "actions": np.zeros((rows, 26), np.float32),
        "rewards": np.linspace(0, 101, rows, dtype=np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 20 == 19,
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, next_observations=arrays["observations"])
    (tmp_path / "hammer-expert.npz").write_bytes(buffer.getvalue())
    table.write_hand(tmp_path / "hammer-expert.npz", tmp_path / "data" / f"{HAMMER}.hdf5")
    dataset = load_dataset(f"d4rl:{HAMMER}", cache_dir=tmp_path / "data")
    assert len(dataset.rewards) == rows - 2  # D4RL's rule leaves out the ends of episodes
    assert table.successes(HAMMER, dataset) == int(np.sum(arrays["rewards"][:-1] > 75))
    assert table.successes(CUBE, dataset) == 0


def test_the_table_shows_means_and_the_interval_of_the_end(machine, tmp_path, capsys):
    run(tmp_path, "--tasks", "cube-single*")
    run(tmp_path, "--show")
    header, *lines = (line.split() for line in capsys.readouterr().out.splitlines()[-4:])
    assert header[:3] == ["task", "method", "seeds"]
    assert lines[2][:7] == [CUBE, "fql", "0", "1", "5.0", "5.0", "2.0"]
    assert lines[1][1:4] == ["flow_bc", "noise", "0"]
    assert lines[2][7:] == ["[0.0,", "8.0]", "0", "3.0"]


def test_a_failed_episode_has_no_score():
    row = {"scores": [100.0, None, 0.0, 50.0]}
    assert table.mean(row) == 50.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stopped_table_goes_on(monkeypatch, tmp_path):
    """Real data, runs and evaluations, tiny."""
    settings = {"METHODS": ("bc", "fql"), "UPDATES": 40, "CLONE_UPDATES": 20, "ROWS": 2000, "SUCCESSES": 0}
    settings["EVALUATIONS"] = ((0.25, 1), (0.5, 1), (1.0, 2))
    for name, value in settings.items():
        monkeypatch.setattr(table, name, value)
    fidec, commands = table.fidec, []

    def stopped(*words: str) -> str:
        commands.append(words)
        if len(commands) == 5:
            raise KeyboardInterrupt
        return fidec(*words)

    words = ["--work", str(tmp_path), "--rows", str(tmp_path / "rows.jsonl"), "--tasks", "pointmaze*", "--seeds", "0"]
    monkeypatch.setattr(table, "fidec", stopped)
    assert table.main(words) == 130
    assert [words[0] for words in commands] == ["data", "train", "eval", "train", "eval"]
    assert [row["updates"] for row in table.read_rows(tmp_path / "rows.jsonl")] == [5]
    assert table.main(words) == 0
    rows = table.read_rows(tmp_path / "rows.jsonl")
    found = [(row["method"], row["updates"], len(row["scores"]), row["failed"]) for row in rows]
    assert found == [("bc", u, n, 0) for u, n in ((5, 1), (10, 1), (20, 2))] + [
        ("fql", u, n, 0) for u, n in ((10, 1), (20, 1), (40, 2))
    ]
    assert len({row["data"] for row in rows}) == 1
    assert [row["core_seconds"] is None for row in rows] == [False, True, *[False] * 4]  # the second was interrupted
    assert not list((tmp_path / "runs").rglob("config.json"))
