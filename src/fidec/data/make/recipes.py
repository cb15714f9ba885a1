"""Which data sets can be made here, and with which of OGBench's settings.

The settings are those that OGBench's authors gave to their own generation scripts for the official files:
`play` data follows a plan with smoothed noise, `navigate` data walks to one random goal after the other.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from fidec.errors import ConfigError

# Raised whenever a change makes other rows from the same seed, so that old and new shards never mix.
GENERATOR_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """How one data set is made. `episode_rows` counts states, which are one more than transitions."""

    name: str
    env_id: str
    kind: str  # "play" (manipulation) or "navigate" (pointmaze)
    episode_rows: int
    noise: float
    noise_smoothing: float = 0.0

    @property
    def has_buttons(self) -> bool:
        return self.env_id.startswith(("scene", "puzzle"))

    @property
    def dtypes(self) -> dict[str, str]:
        """Names and types of the stored arrays, in OGBench's order."""
        arrays = {"observations": "float32", "actions": "float32", "terminals": "bool"}
        arrays |= {"qpos": "float32", "qvel": "float32"}
        return arrays | ({"button_states": "int64"} if self.has_buttons else {})


def _play(env: str) -> Recipe:
    return Recipe(f"{env}-play-v0", f"{env}-v0", "play", 1001, noise=0.1, noise_smoothing=0.5)


def _navigate(maze: str, episode_rows: int) -> Recipe:
    return Recipe(f"pointmaze-{maze}-navigate-v0", f"pointmaze-{maze}-v0", "navigate", episode_rows, noise=0.5)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _play("cube-single"),
        _play("cube-double"),
        _play("scene"),
        _play("puzzle-3x3"),
        _play("puzzle-4x4"),
        _navigate("medium", 1001),
        _navigate("large", 1001),
        _navigate("giant", 2001),
    )
}


def dataset_name(task: str) -> str:
    """The data set behind a task id: `cube-single-play-singletask-task2-v0` uses `cube-single-play-v0`."""
    return re.sub(r"-singletask(-task\d+)?(?=-v\d+$)", "", task)


def find_recipe(task: str) -> Recipe:
    """The recipe of a data set name or of a single-task id."""
    recipe = RECIPES.get(dataset_name(task))
    if recipe is None:
        raise ConfigError(
            f"fidec cannot make {task!r} by itself. It can make: {', '.join(RECIPES)} "
            "(or any -singletask- id of these). Other OGBench data has to be downloaded."
        )
    return recipe


def versions() -> dict[str, str]:
    """The packages whose version can change a row."""
    return {package: metadata.version(package) for package in ("ogbench", "mujoco", "numpy", "scipy")}


def settings(recipe: Recipe, seed: int) -> dict[str, Any]:
    """Everything besides package versions that decides what an episode holds."""
    return {**asdict(recipe), "seed": seed, "generator": GENERATOR_VERSION}
