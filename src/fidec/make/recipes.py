"""Which data sets can be made here, and with which of OGBench's settings.

The settings are those that OGBench's authors gave to their own generation scripts for the official files:
`play` data follows a plan with smoothed noise, `navigate` data walks to one random goal after the other (or pushes
a ball there). A point walks by itself; ants and humanoids are led by experts that are trained first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
    kind: str  # "play", "visual-play" (the same in pictures), "navigate" (mazes) or "soccer" (mazes with a ball)
    episode_rows: int
    noise: float
    noise_smoothing: float = 0.0
    rendering: str | None = None  # of pictures: "exact" (as OGBench draws) or "fast" (fidec.envs.fast_render)
    experts: tuple[str, ...] = ()  # who walks; each is one of `expert.recipes.EXPERTS`

    @property
    def has_buttons(self) -> bool:
        return self.env_id.removeprefix("visual-").startswith(("scene", "puzzle"))

    @property
    def dtypes(self) -> dict[str, str]:
        """Names and types of the stored arrays, in OGBench's order."""
        observations = "uint8" if self.rendering else "float32"
        arrays = {"observations": observations, "actions": "float32", "terminals": "bool"}
        arrays |= {"qpos": "float32", "qvel": "float32"}
        return arrays | ({"button_states": "int64"} if self.has_buttons else {})


def _play(env: str) -> Recipe:
    return Recipe(f"{env}-play-v0", f"{env}-v0", "play", 1001, noise=0.1, noise_smoothing=0.5)


def _visual_play(env: str) -> Recipe:
    return replace(_play(f"visual-{env}"), kind="visual-play", rendering="exact")


def _navigate(maze: str, episode_rows: int) -> Recipe:
    """A maze by the name of its environment, such as `antmaze-large`."""
    walker = maze.split("maze")[0]
    noise, experts = (0.5, ()) if walker == "point" else (0.2, (walker,))
    return Recipe(f"{maze}-navigate-v0", f"{maze}-v0", "navigate", episode_rows, noise, experts=experts)


def _soccer(field: str) -> Recipe:
    name = f"antsoccer-{field}"
    return Recipe(f"{name}-navigate-v0", f"{name}-v0", "soccer", 1001, noise=0.2, experts=("ant", "antball"))


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _play("cube-single"),
        _play("cube-double"),
        _play("scene"),
        _play("puzzle-3x3"),
        _play("puzzle-4x4"),
        _visual_play("cube-single"),
        _visual_play("cube-double"),
        _visual_play("scene"),
        _visual_play("puzzle-3x3"),
        _visual_play("puzzle-4x4"),
        _navigate("pointmaze-medium", 1001),
        _navigate("pointmaze-large", 1001),
        _navigate("pointmaze-giant", 2001),
        _navigate("antmaze-medium", 1001),
        _navigate("antmaze-large", 1001),
        _navigate("antmaze-giant", 2001),
        _navigate("humanoidmaze-medium", 2001),
        _navigate("humanoidmaze-large", 2001),
        _navigate("humanoidmaze-giant", 4001),
        _soccer("arena"),
        _soccer("medium"),
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


def settings(recipe: Recipe, seed: int, experts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything besides package versions that decides what an episode holds; `experts` maps names to hashes."""
    fields = {**asdict(recipe), "seed": seed, "generator": GENERATOR_VERSION}
    del fields["experts"]
    if recipe.rendering is None:  # as it stands in the records of all data but pictures
        del fields["rendering"]
    return fields | ({"experts": dict(experts)} if experts else {})
