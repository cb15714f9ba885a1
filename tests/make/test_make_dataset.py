"""Making a data set: layout, workers, interruptions, and what is rejected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidec.data.cache import make_command
from fidec.errors import BusyError, ConfigError, DataError, EnvError
from fidec.executors import Request
from fidec.executors.kinds.local import LocalPool
from fidec.make import RECIPES, dataset_name, episodes, find_recipe, make_dataset
from fidec.make.episodes import locked, read_shard, run_jobs, write_arrays
from fidec.make.worlds import open_world

MAZE = "pointmaze-medium-navigate-v0"
SCRIPT = """
import sys
from fidec.make import make_dataset
make_dataset({name!r}, {rows}, directory={directory!r}, workers=1, episode_rows={episode_rows}, seed=7)
"""


def make(directory: Path, rows: int = 120, name: str = MAZE, **kwargs):
    return make_dataset(
        name, rows, directory=directory, **{"episode_rows": 60, "seed": 7, "progress": False} | kwargs
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def start_script(directory: Path, rows: int, episode_rows: int, name: str = MAZE) -> subprocess.Popen:
    code = SCRIPT.format(name=name, rows=rows, directory=str(directory), episode_rows=episode_rows)
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    return make(directory, rows=301, workers=1)


def test_rows_are_whole_episodes(made):
    assert (made.rows, made.episodes) == ({"train": 360, "val": 60}, {"train": 6, "val": 1})
    assert not made.reused
    assert {path.name for path in made.paths["train"].parent.iterdir()} == {
        f"{MAZE}.npz",
        f"{MAZE}-val.npz",
        f"{MAZE}.json",
    }
    with np.load(made.paths["train"], allow_pickle=False) as file:
        assert {key: str(file[key].dtype) for key in file.files} == RECIPES[MAZE].dtypes
        assert np.flatnonzero(file["terminals"]).tolist() == [59, 119, 179, 239, 299, 359]


def test_workers_change_no_byte(made, tmp_path):
    make(tmp_path, rows=301, workers=3)
    assert contents(tmp_path) == contents(made.paths["train"].parent)


class LosingPool(LocalPool):
    """An executor that loses the first job that it is given."""

    remote, retries = True, 1

    def __init__(self):
        super().__init__(Request(workers=2))
        self.submitted = []

    def submit(self, slot, work, files):
        process = super().submit(slot, work, files)
        self.submitted.append(work.argv)
        if len(self.submitted) == 1:
            wait_for(lambda: any(work.log.parent.glob("train-*.npz")))
            process.kill()
        return process


def test_an_executor_that_loses_jobs_changes_no_byte(made, tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "GROUP", 3)
    pool = LosingPool()
    make(tmp_path, rows=301, open_pool=lambda: nullcontext(pool))
    assert len(pool.submitted) == 4  # three groups of seven episodes, one of them twice
    assert contents(tmp_path) == contents(made.paths["train"].parent)
    make(tmp_path, rows=301, open_pool=lambda: pytest.fail("there is nothing to do"))


def test_a_group_that_fails_by_itself_is_reported(tmp_path):
    recipe = replace(RECIPES[MAZE], env_id="no-such-maze-v0")
    pool = LocalPool(Request())
    with pytest.raises(EnvError, match=r"during train episode 0.*no-such-maze"):
        list(run_jobs(recipe, 0, [("train", 0)], tmp_path, workers=1, open_pool=lambda: nullcontext(pool)))


def test_record(made):
    record = json.loads((made.paths["train"].parent / f"{MAZE}.json").read_text())
    assert record["settings"]["seed"] == 7
    assert record["settings"]["noise"] == 0.5
    assert record["rows"] == made.rows
    assert record["sha256"] == made.sha256
    assert {"ogbench", "mujoco", "numpy"} <= record["versions"].keys()


def test_existing_is_returned_at_once_and_smaller_is_a_prefix(made, tmp_path):
    directory = made.paths["train"].parent
    again = make(directory, rows=100, name="pointmaze-medium-navigate-singletask-task3-v0")
    assert again.reused
    assert again.sha256 == made.sha256
    small = make(tmp_path, rows=61)
    with np.load(small.paths["train"]) as a, np.load(made.paths["train"]) as b:
        assert len(a["actions"]) == 120
        assert np.array_equal(a["actions"], b["actions"][:120])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "seed is 7, asked for 8"),
        ({"rows": 1000}, "asked for 17"),
        ({"episode_rows": 61}, "episode_rows"),
    ],
)
def test_other_data_is_rejected(made, change, message):
    before = contents(made.paths["train"].parent)
    with pytest.raises(DataError, match=message):
        make(made.paths["train"].parent, **{"rows": 301} | change)
    assert contents(made.paths["train"].parent) == before


def test_foreign_and_changed_files_are_rejected_unless_overwritten(tmp_path):
    (tmp_path / f"{MAZE}.npz").write_bytes(b"somebody's")
    with pytest.raises(DataError, match=r"no .*json says how it was made"):
        make(tmp_path)
    assert (tmp_path / f"{MAZE}.npz").read_bytes() == b"somebody's"
    whole = make(tmp_path, overwrite=True)
    with open(whole.paths["val"], "ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="SHA-256"):
        make(tmp_path)
    (tmp_path / f"{MAZE}.json").write_text('{"settings": 3}')
    with pytest.raises(DataError, match="does not describe"):
        make(tmp_path)


def test_bad_arguments(tmp_path):
    with pytest.raises(ConfigError, match="cube-single-play-v0"):
        make_dataset("antmaze-large-stitch-v0", 10, directory=tmp_path)
    changes: list[dict[str, Any]] = [{"rows": 0}, {"workers": 0}, {"seed": -1}, {"rows": 1.5}]
    for change in changes:
        with pytest.raises(ConfigError, match="must be"):
            make(tmp_path, **change)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        make(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_names():
    assert dataset_name("cube-single-play-singletask-task2-v0") == "cube-single-play-v0"
    assert find_recipe("puzzle-4x4-play-singletask-v0").env_id == "puzzle-4x4-v0"
    assert find_recipe("pointmaze-giant-navigate-v0").episode_rows == 2001


def test_resume_after_sigkill_of_everything(made, tmp_path):
    """Killed in the middle: valid shards stay, a damaged one is made again, the result is the same."""
    process = start_script(tmp_path, rows=301, episode_rows=60)
    partial = tmp_path / f"{MAZE}.partial"
    wait_for(lambda: len(list(partial.glob("train-*.npz"))) >= 2)
    process.kill()
    process.communicate()
    if not partial.exists():
        pytest.skip("the run was done before it could be killed")
    kept, damaged = partial / "train-000000.npz", partial / "train-000001.npz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    written = kept.stat().st_mtime_ns
    with pytest.raises(DataError, match="seed was 7, now 8"):
        make(tmp_path, rows=301, seed=8)

    jobs = []

    def spy(recipe, seed, todo, *rest, **how):
        jobs.extend(todo)
        assert kept.stat().st_mtime_ns == written
        return run_jobs(recipe, seed, todo, *rest, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fidec.make.dataset.run_jobs", spy)
        make(tmp_path, rows=301)
    assert ("train", 0) not in jobs
    assert ("train", 1) in jobs
    assert contents(tmp_path) == contents(made.paths["train"].parent)


def test_other_settings_in_partial_are_discarded_when_overwriting(made, tmp_path):
    partial = tmp_path / f"{MAZE}.partial"
    partial.mkdir()
    (partial / "settings.json").write_text('{"seed": 99}')
    (partial / "train-000000.npz").write_bytes(b"old")
    make(tmp_path, rows=301, overwrite=True)
    assert contents(tmp_path) == contents(made.paths["train"].parent)


def test_a_damaged_shard_is_made_again(tmp_path):
    rows, path = 4, tmp_path / "train-000000.npz"
    recipe = replace(RECIPES[MAZE], episode_rows=rows)
    values = np.random.default_rng(0).random((rows, 2))
    arrays = {key: values.astype(dtype) for key, dtype in recipe.dtypes.items()}
    write_arrays(path, arrays)
    whole, rejected = path.read_bytes(), 0
    positions = range(0, len(whole), 3)
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        shard = read_shard(path, recipe)
        rejected += shard is None
        assert shard is None or all(np.array_equal(shard[key], arrays[key]) for key in arrays)
    assert rejected > len(positions) / 2  # the other bytes are dates and other fields that do not matter
    path.write_bytes(whole)
    assert read_shard(path, recipe) is not None
    assert read_shard(path, replace(recipe, episode_rows=rows + 1)) is None


def test_dead_worker_is_reported(tmp_path):
    """An episode far too long to end by itself, and a SIGKILL, as from the out-of-memory killer."""
    recipe = replace(RECIPES[MAZE], episode_rows=10**8)
    running = run_jobs(recipe, 0, [("train", 0), ("train", 1)], tmp_path, workers=2, wake=0.01)
    assert next(running) is None
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    pids = [int(line.split()[0]) for line in children.splitlines() if "fidec.make.worker" in line]
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EnvError, match=r"SIGKILL during train episode \d.*the same command continues.*fewer workers"):
        list(running)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_failing_worker_is_reported(tmp_path):
    recipe = replace(RECIPES[MAZE], env_id="no-such-maze-v0")
    with pytest.raises(EnvError, match=r"train episode 0: .*no-such-maze"):
        list(run_jobs(recipe, 0, [("train", 0)], tmp_path, workers=1))


def test_ctrl_c_and_orphans(tmp_path):
    """Ctrl-C ends at once with one sentence; the worker does not survive its parent."""
    process = start_script(tmp_path, rows=10**8, episode_rows=10**8)
    partial = tmp_path / f"{MAZE}.partial"
    wait_for(lambda: (partial / "worker-0.log").exists())
    with pytest.raises(BusyError, match="in use by process"):
        make(tmp_path)
    time.sleep(0.3)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()  # if it did not end: where SIGINT is ignored, as in the background of a shell
    assert time.monotonic() - start < 10
    assert "Finished episodes are kept" in stderr
    assert stderr.count("Traceback") <= 1  # that of the script itself: the command line catches it
    with locked(partial):  # no process holds it any more
        pass


def test_workers_never_import_jax():
    code = (
        "import sys, numpy as np; from dataclasses import replace; from fidec.make.worlds import open_world;"
        "from fidec.make import RECIPES; from fidec.make.expert import Policy;"
        "import fidec.make.worker, ogbench.manipspace.oracles.plan.cube_plan;"
        "recipe = replace(RECIPES['antmaze-medium-navigate-v0'], episode_rows=3);"
        "policy = Policy([(np.zeros((29, 16), np.float32), np.zeros(16, np.float32))]);"
        "open_world(recipe, policy).episode(0, 'train', 0);"
        "print('jax' in sys.modules, 'torch' in sys.modules)"
    )
    environment = os.environ | {"MUJOCO_GL": "disable"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["False", "False"], result.stderr


def check_with_ogbench(name: str, directory: Path, tasks: range) -> None:
    """Workers write what one process makes, and OGBench's own loader reads it."""
    import ogbench

    made = make(directory, name=name, rows=120, workers=2)
    alone = open_world(replace(RECIPES[name], episode_rows=60)).episode(7, "train", 1)
    with np.load(made.paths["train"], allow_pickle=False) as file:
        assert all(file[key][60:].tobytes() == alone[key].tobytes() for key in alone)
    for task in tasks:
        task_id = name.replace("-v0", f"-singletask-task{task}-v0")
        loaded: Any = ogbench.make_env_and_datasets(task_id, dataset_path=str(made.paths["train"]))
        env, train, val = loaded
        assert train["observations"].shape == train["next_observations"].shape == (118, *env.observation_space.shape)
        assert len(val["rewards"]) == 59
        assert {"rewards", "masks", "terminals", "actions"} <= train.keys()
        assert np.flatnonzero(train["terminals"]).tolist() == [58, 117]
        env.close()


@pytest.mark.filterwarnings("ignore:.*Box ")
def test_ogbench_reads_it(tmp_path):
    check_with_ogbench(MAZE, tmp_path, range(2, 4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Box ")
@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if name != MAZE and not recipe.expert])
def test_ogbench_reads_every_task(name, tmp_path):
    check_with_ogbench(name, tmp_path, range(1, 6))


def test_the_hint_of_missing_data_names_what_can_be_made():
    assert all(make_command(name) == f"fidec data make {name} --rows 100000" for name in RECIPES)
    assert make_command("humanoidmaze-large-navigate-v0") is None
