"""Get an expert: the one that is given, else the one in the cache, else a new one that is trained now."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fidec.console.progress import Progress
from fidec.errors import ConfigError
from fidec.make.expert.recipes import ExpertRecipe, find_expert
from fidec.make.expert.store import RECORD, Expert, load_expert, remove_checkpoint, save_expert
from fidec.make.shards import locked
from fidec.store.files import find_json, to_builtin

if TYPE_CHECKING:
    from fidec.make.expert.train import Trainer

CHECKPOINT_SECONDS = 300.0


def cached(name: str, directory: Path) -> Path:
    """Where the expert of this name lies in a data directory."""
    return directory / "experts" / name


def find(names: Sequence[str], directory: Path, given: Sequence[Path | str] = ()) -> dict[str, Expert]:
    """Those of the experts that are there. Each directory in `given` says itself whose it is."""
    experts = {expert.name: expert for expert in (load_expert(Path(path).expanduser()) for path in given)}
    unused = [f"{expert.name!r} ({expert.directory})" for name, expert in experts.items() if name not in names]
    if unused:
        raise ConfigError(f"no use for the expert {', '.join(unused)}: this data needs {', '.join(names) or 'none'}")
    for name in names:
        path = cached(name, directory)
        if name not in experts and (path / RECORD).exists():
            experts[name] = load_expert(path, name)
    return experts


def train_missing(
    names: Sequence[str],
    found: dict[str, Expert],
    directory: Path,
    *,
    allow_days: bool = False,
    progress: bool = True,
) -> dict[str, Expert]:
    """All experts, the missing ones trained into the cache. What takes days is refused unless allowed."""
    missing = [find_expert(name) for name in names if name not in found]
    if missing and progress:
        _say(f"timing the training of {', '.join(recipe.name for recipe in missing)} on this machine ...")
    costs = {recipe.name: _cost(recipe) for recipe in missing}
    for recipe in missing:
        if recipe.takes_days and not allow_days:
            raise ConfigError(
                f"this data needs the expert {recipe.name!r}, and {cached(recipe.name, directory)} holds none. "
                f"Training it takes {costs[recipe.name]}. If that is what you want, say --train-expert "
                "(it can be stopped and goes on later); if you have one, give --expert PATH."
            )
    for recipe in missing:
        path = cached(recipe.name, directory)
        if progress:
            cost = costs[recipe.name]
            _say(f"{path} holds no expert, so it is trained first: {cost}. If stopped, the same command goes on.")
        found = found | {recipe.name: train_expert(recipe, path, progress=progress)}
    return {name: found[name] for name in names}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seconds_per_step(recipe: ExpertRecipe, blocks: int = 5) -> float:
    """Measured on this machine with a few blocks of training."""
    from fidec.make.expert.train import Trainer

    short = replace(recipe, random_steps=0, capacity=10_000)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(short, Path(directory))
        for _ in range(2):  # The first call compiles.
            trainer.advance()
        _ = trainer.layers  # waits for the updates
        start = time.monotonic()
        for _ in range(blocks):
            trainer.advance()
        _ = trainer.layers
        return (time.monotonic() - start) / (blocks * recipe.block_steps)


def _cost(recipe: ExpertRecipe) -> str:
    each = seconds_per_step(recipe)
    hours = recipe.steps * each / 3600
    if hours < 2:
        long = f"{60 * hours:.0f} minutes"
    else:
        long = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
    return f"{recipe.steps:,} steps at the {1 / each:,.0f} steps/s measured here, about {long}"


def train_expert(
    recipe: ExpertRecipe,
    directory: Path,
    *,
    seed: int = 0,
    progress: bool = True,
    keep_checkpoint: bool = False,
    report_episodes: int = 10,
) -> Expert:
    """Train an expert into a directory, going on with what is there, and write what it can do beside it.

    With `keep_checkpoint` a later call with more steps goes on from the end of this one.
    """
    from fidec.make.expert.report import report
    from fidec.make.expert.train import Trainer
    from fidec.make.recipes import versions

    with locked(directory):
        if (done := _finished(recipe, directory, seed)) is not None:
            return done
        trainer = Trainer(recipe, directory, seed)
        name = f"expert {recipe.name}"
        with Progress(recipe.steps, trainer.steps, name=name, enabled=progress) as bar:
            try:
                _train(trainer, bar)
            except KeyboardInterrupt:
                # Not saved here: a block may be half done. At most the time between two checkpoints is lost.
                stopped = f"Stopped. {directory} keeps the last checkpoint; run the same command again to go on."
                bar.message(stopped)
                raise KeyboardInterrupt(stopped) from None
            if keep_checkpoint:
                trainer.save()
            say = bar.message if progress else lambda text: None
            record = {
                "made_by": "fidec (OGBench's environment and reward, fidec's SAC; not one of OGBench's experts)",
                "name": recipe.name,
                "features": recipe.features,
                "steps": trainer.steps,
                "seed": seed,
                "recipe": asdict(recipe),
                "report": report(recipe, trainer.policy, report_episodes, say),
                "versions": versions(),
            }
        save_expert(directory, trainer.layers, record)
        if not keep_checkpoint:
            remove_checkpoint(directory)
    return load_expert(directory, recipe.name)


def _finished(recipe: ExpertRecipe, directory: Path, seed: int) -> Expert | None:
    """The expert, if another process has trained it since we looked, for at least as long."""
    record = find_json(directory / RECORD) or {}
    wanted = to_builtin({"name": recipe.name, "seed": seed, "recipe": asdict(recipe)})
    steps = record.get("steps")
    if type(steps) is not int or steps < recipe.steps or not isinstance(record.get("recipe"), dict):
        return None
    found = {**record, "recipe": {**record["recipe"], "steps": recipe.steps}}
    same = all(found.get(key) == value for key, value in wanted.items())
    return load_expert(directory, recipe.name) if same else None


def _train(trainer: Trainer, bar: Progress) -> None:
    saved = time.monotonic()
    while trainer.steps < trainer.recipe.steps:
        trainer.advance()
        bar.advance(trainer.recipe.block_steps, **trainer.status())
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            trainer.save()
            saved = time.monotonic()
