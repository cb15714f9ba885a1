"""Make a data set like OGBench's on this machine: with its environments, scripted oracles and settings.

Episode `i` of a split is a function of (seed, split, i), and of the expert for ants. So the rows do not depend on the
number of workers or on interruptions, and a smaller data set is the beginning of a larger one with the same seed.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.errors import ConfigError, DataError
from fidec.extras import require
from fidec.make.episodes import OpenPool, join_shards, locked, open_partial, read_shard, run_jobs, shard_path
from fidec.make.expert import Expert, expert_directory, find_expert, flipped
from fidec.make.recipes import Recipe, find_recipe, settings, versions
from fidec.make.worlds import SPLITS
from fidec.store.files import find_json, sha256_file, write_json


@dataclass(frozen=True)
class MadeDataset:
    """A finished data set. The keys are `train` and `val`; rows count states, as the files do."""

    name: str
    paths: dict[str, Path]
    rows: dict[str, int]
    episodes: dict[str, int]
    sha256: dict[str, str]
    seconds: float
    reused: bool  # whether it existed already


def make_dataset(
    name: str,
    rows: int,
    *,
    directory: Path | str,
    seed: int = 0,
    workers: int = 1,
    overwrite: bool = False,
    progress: bool = True,
    expert: Path | str | None = None,
    episode_rows: int | None = None,
    open_pool: OpenPool | None = None,
) -> MadeDataset:
    """Make `<name>.npz` with at least `rows` rows, in whole episodes, and `<name>-val.npz` with a tenth of them.

    `name` is a data set name or a single-task id. A data set that exists already with the same seed and settings and
    enough rows is returned at once; any other file of that name is an error unless `overwrite`. An interrupted call
    is continued by the same call. `<name>.json` records how the files were made and their SHA-256. `episode_rows`
    shortens the episodes for tests.

    With `open_pool` an executor makes the episodes (`fidec.executors`). It is opened only if there is work.

    Ants need an expert: the one in the directory `expert`, else the one in `directory`, else the one in the default
    data directory, else a new one, which is trained into `directory` first.
    """
    start = time.monotonic()
    recipe = find_recipe(name)
    if episode_rows is not None:
        recipe = replace(recipe, episode_rows=episode_rows)
    _check_arguments(rows=(rows, 1), workers=(workers, 1), seed=(seed, 0), episode_rows=(recipe.episode_rows, 2))
    count = math.ceil(rows / recipe.episode_rows)
    episodes = {"train": count, "val": max(1, count // 10)}
    directory = Path(directory).expanduser()
    partial = directory / f"{recipe.name}.partial"
    if expert is not None and not recipe.expert:
        raise ConfigError(f"{recipe.name} needs no expert: leave it out.")
    walker = find_expert(directory, expert) if recipe.expert else None

    if not overwrite:
        # Existing data may have been made with any expert, unless the caller names one.
        same = settings(recipe, seed, walker.sha256 if walker and expert is not None else None)
        existing = _existing(directory, recipe, same, episodes)
        if existing is not None:
            return existing
    require("ogbench", "ogbench", f"making {recipe.name}")
    try:
        if recipe.expert and walker is None:
            from fidec.make.expert_training import train_expert  # imports JAX

            walker = train_expert(expert_directory(directory), progress=progress)
        wanted = settings(recipe, seed, walker.sha256 if walker else None)
        with locked(partial):
            open_partial(partial, wanted | {"versions": versions()}, overwrite=overwrite)
            _make_episodes(recipe, seed, episodes, partial, workers, progress, walker, open_pool)
            record = _finish(directory, recipe, wanted, episodes, partial)
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{error.filename or directory}: cannot write the data set ({error.strerror or error}). Check "
            "permissions and free space, then run the same command again: finished episodes are kept."
        ) from error
    return _made(directory, record, time.monotonic() - start, reused=False)


def _check_arguments(**arguments: tuple[int, int]) -> None:
    """Each is a value and its lower bound."""
    for name, (value, least) in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _paths(directory: Path, name: str) -> dict[str, Path]:
    return {"train": directory / f"{name}.npz", "val": directory / f"{name}-val.npz"}


def _made(directory: Path, record: dict[str, Any], seconds: float, *, reused: bool) -> MadeDataset:
    name = record["settings"]["name"]
    fields = {key: record[key] for key in ("rows", "episodes", "sha256")}
    return MadeDataset(name, _paths(directory, name), **fields, seconds=seconds, reused=reused)


def _existing(
    directory: Path, recipe: Recipe, wanted: dict[str, Any], episodes: dict[str, int]
) -> MadeDataset | None:
    """The existing data set if it is the wanted one, None if there is none; another one is an error."""
    start = time.monotonic()
    paths = _paths(directory, recipe.name)
    if not any(path.exists() for path in paths.values()):
        return None
    sidecar = directory / f"{recipe.name}.json"
    record = find_json(sidecar)
    if record is None and (directory / f"{recipe.name}.partial" / "settings.json").exists():
        return None  # an earlier call was stopped after it moved the files into place and before it recorded them
    advice = "Choose another directory, or ask to overwrite."
    if record is None:
        raise DataError(f"{paths['train']} exists, but no {sidecar.name} says how it was made. {advice}")
    try:
        recorded = record["settings"]
        differing = [key for key in wanted if recorded.get(key) != wanted[key]]
        changed = [split for split in SPLITS if sha256_file(paths[split]) != record["sha256"][split]]
        enough = all(record["episodes"][split] >= episodes[split] for split in SPLITS)
        made = _made(directory, record, time.monotonic() - start, reused=True)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{sidecar} does not describe the files next to it ({error!r}). {advice}") from error
    if differing:
        what = "; ".join(f"{key} is {recorded.get(key)!r}, asked for {wanted[key]!r}" for key in differing)
        raise DataError(f"{paths['train']} exists with other settings ({what}). {advice}")
    if changed:
        raise DataError(f"{paths[changed[0]]} is not the file that {sidecar.name} describes (SHA-256). {advice}")
    if not enough:
        raise DataError(
            f"{paths['train']} exists with {record['episodes']['train']} episodes for training and "
            f"{record['episodes']['val']} for validation, asked for {episodes['train']} and "
            f"{episodes['val']}. {advice}"
        )
    return made


def _make_episodes(
    recipe: Recipe,
    seed: int,
    episodes: dict[str, int],
    partial: Path,
    workers: int,
    progress: bool,
    expert: Expert | None,
    open_pool: OpenPool | None,
) -> None:
    jobs = [(split, index) for split in SPLITS for index in range(episodes[split])]
    todo = [job for job in jobs if read_shard(shard_path(partial, *job), recipe) is None]
    done = len(jobs) - len(todo)
    rows = recipe.episode_rows
    with Progress(len(jobs) * rows, done * rows, name=recipe.name, unit="row", enabled=progress) as bar:
        if recipe.visual and todo and progress:
            bar.message(
                f"{recipe.name}: without a GPU an image takes about 0.3 s, a million images three days on one core"
            )
        if done and progress:
            bar.message(f"{recipe.name}: {done} of {len(jobs)} episodes are in {partial} already")
        running = run_jobs(recipe, seed, todo, partial, workers, expert, open_pool=open_pool)
        try:
            for job in running:
                bar.advance(0 if job is None else rows)
        except KeyboardInterrupt:
            stopped = f"Stopped. Finished episodes are kept in {partial}; the same command continues."
            bar.message(stopped)
            raise KeyboardInterrupt(stopped) from None
        finally:
            running.close()


def _finish(
    directory: Path, recipe: Recipe, wanted: dict[str, Any], episodes: dict[str, int], partial: Path
) -> dict[str, Any]:
    """Join the shards and record how they were made. The old record is removed first, the new one written last."""
    sidecar = directory / f"{recipe.name}.json"
    sidecar.unlink(missing_ok=True)
    for leftover in directory.glob(f".{recipe.name}*.tmp"):
        leftover.unlink()
    paths = _paths(directory, recipe.name)
    for split in SPLITS:
        join_shards(partial, split, episodes[split], recipe, paths[split])
    record = {
        "made_by": "fidec data make (regenerated with OGBench's scripted oracles; not the official file)",
        "settings": wanted,
        "rows": {split: count * recipe.episode_rows for split, count in episodes.items()},
        "episodes": episodes,
        "sha256": {split: sha256_file(path) for split, path in paths.items()},
        "versions": versions() | {"python": sys.version.split()[0]},
    }
    if recipe.expert:
        record["flipped_episodes"] = {split: _count_flipped(path, recipe) for split, path in paths.items()}
    write_json(sidecar, record)
    return record


def _count_flipped(path: Path, recipe: Recipe) -> int:
    """Episodes in which the ant was upside down for long. They stay in the data, as they do in OGBench's."""
    with np.load(path, allow_pickle=False) as file:
        qpos = file["qpos"]
    return sum(flipped(episode) for episode in qpos.reshape(-1, recipe.episode_rows, qpos.shape[-1]))
