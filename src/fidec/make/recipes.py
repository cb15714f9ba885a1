"""The data sets that can be made, with the settings that OGBench's authors used for the official files.

`play` data follows a plan with smoothed noise. `navigate` data walks to one random goal after the other: a point
moves by itself, an ant needs an expert, which is trained first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from fidec.data.cache import MAKEABLE, dataset_name
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
    expert: bool = False  # whether the ant's expert walks

    @property
    def visual(self) -> bool:
        return self.kind == "visual-play"

    @property
    def has_buttons(self) -> bool:
        return self.env_id.removeprefix("visual-").startswith(("scene", "puzzle"))

    @property
    def dtypes(self) -> dict[str, str]:
        """Names and types of the stored arrays, in OGBench's order."""
        observations = "uint8" if self.visual else "float32"
        arrays = {"observations": observations, "actions": "float32", "terminals": "bool"}
        arrays |= {"qpos": "float32", "qvel": "float32"}
        return arrays | ({"button_states": "int64"} if self.has_buttons else {})


def _recipe(name: str) -> Recipe:
    """The recipe of a data set, by the parts of its name: ENVIRONMENT-KIND-v0."""
    env, kind, version = name.rsplit("-", 2)
    if kind == "play":
        visual = env.startswith("visual-")
        kind = "visual-play" if visual else kind
        return Recipe(name, f"{env}-{version}", kind, 1001, noise=0.1, noise_smoothing=0.5)
    ant, rows = env.startswith("ant"), 2001 if env.endswith("giant") else 1001
    return Recipe(name, f"{env}-{version}", kind, rows, noise=0.2 if ant else 0.5, expert=ant)


RECIPES: dict[str, Recipe] = {name: _recipe(name) for name in MAKEABLE}


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
    if recipe.visual:
        fields["rendering"] = "exact"  # older versions could also make images that were "fast"
    return fields | ({"experts": {"ant": expert_sha256}} if expert_sha256 else {})
