"""The data sets that can be made, with the settings that OGBench's authors used for the official files.

`play` data follows a plan with smoothed noise. `navigate` data walks to one random goal after the other: a point
moves by itself, an ant needs an expert, which is trained first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any

from fidec.data.cache import dataset_name
from fidec.register import unknown

# To be increased with every change of the rows of a seed, so that old and new shards are never mixed.
GENERATOR_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """How one data set is made. `episode_rows` counts states, which are one more than transitions."""

    name: str
    env_id: str
    kind: str  # "play", "visual-play" (the same as images) or "navigate" (mazes)
    episode_rows: int
    noise: float
    noise_smoothing: float = 0.0
    rendering: str | None = None  # of images: "exact" (as OGBench renders) or "fast" (fidec.envs.render)
    expert: bool = False  # whether the ant's expert walks

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
    ant = maze.startswith("ant")
    return Recipe(f"{maze}-navigate-v0", f"{maze}-v0", "navigate", episode_rows, 0.2 if ant else 0.5, expert=ant)


_ARMS = ("cube-single", "cube-double", "scene", "puzzle-3x3", "puzzle-4x4")
_MAZES = {"medium": 1001, "large": 1001, "giant": 2001}  # rows of an episode
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *map(_play, _ARMS),
        *map(_visual_play, _ARMS),
        *(
            _navigate(f"{walker}-{maze}", rows)
            for walker in ("pointmaze", "antmaze")
            for maze, rows in _MAZES.items()
        ),
    )
}


def find_recipe(task: str) -> Recipe:
    """The recipe of a data set name or of a single-task id."""
    recipe = RECIPES.get(dataset_name(task))
    if recipe is None:
        advice = (
            f"fidec can make {', '.join(RECIPES)}, and the data of their -singletask- ids. Download other data with "
        )
        raise unknown("recipe for the data set", dataset_name(task), RECIPES, f"{advice}`fidec data get NAME`.")
    return recipe


def versions() -> dict[str, str]:
    """The packages whose version can change a row."""
    return {package: metadata.version(package) for package in ("ogbench", "mujoco", "numpy", "scipy")}


def settings(recipe: Recipe, seed: int, expert_sha256: str | None = None) -> dict[str, Any]:
    """Everything besides package versions that decides what an episode holds."""
    fields = {**asdict(recipe), "seed": seed, "generator": GENERATOR_VERSION}
    del fields["expert"]
    if recipe.rendering is None:
        del fields["rendering"]
    return fields | ({"experts": {"ant": expert_sha256}} if expert_sha256 else {})
