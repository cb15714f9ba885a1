"""A process that makes episodes: `python -m fidec.make.worker`, started by `fidec.make.pool`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fidec.launch import serve
from fidec.make.expert.policy import Policy
from fidec.make.expert.store import load_expert
from fidec.make.recipes import Recipe
from fidec.make.shards import shard_path, write_arrays


def open_world(recipe: Recipe, policy: Policy | None = None) -> Any:
    """The environment and oracles of a recipe, with a method `episode(seed, split, index)`; ants need a policy."""
    if recipe.kind in ("play", "visual-play"):
        from fidec.make.play import PlayWorld

        return PlayWorld(recipe)
    from fidec.make.navigate import NavigateWorld

    return NavigateWorld(recipe, policy)


def start(setup: dict[str, Any]) -> Callable[[tuple[str, int]], None]:
    """The function that makes an episode, of (split, index)."""
    expert = setup["expert"]  # with the hash that the parent saw
    policy = load_expert(Path(expert["directory"]), sha256=expert["sha256"]).policy if expert else None
    world = open_world(Recipe(**setup["recipe"]), policy)

    def make(job: tuple[str, int]) -> None:
        write_arrays(shard_path(Path(setup["directory"]), *job), world.episode(setup["seed"], *job))

    return make


if __name__ == "__main__":
    serve(start)
