"""How good an expert is: how it walks in the open, and how many goals it reaches in a maze."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fidec.make.expert.features import FLIPPED_STEPS, flipped
from fidec.make.expert.policy import Policy
from fidec.make.expert.recipes import ExpertRecipe
from fidec.make.expert.track import Track
from fidec.quiet import global_numpy_seed

NOISE = 0.2  # of the makers of maze data


def report(
    recipe: ExpertRecipe, policy: Policy, episodes: int = 10, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Means over episodes with the makers' noise. Seeds are fixed, so equal experts have equal reports."""
    ground = _in_the_open(recipe, policy, episodes)
    means = ", ".join(f"{key} {value:.1f}" for key, value in ground.items())
    say(f"{recipe.name} in the open, means of {episodes} episodes: {means}")
    facts: dict[str, Any] = {"episodes": episodes, "noise": NOISE, "open": ground}
    maze = _in_a_maze(recipe, policy, episodes)
    if maze is not None:
        facts["maze"] = maze
        say(
            f"{maze['data']}: {maze['goals_per_episode']:.1f} goals an episode, {100 * maze['flipped']:.0f} % flipped"
        )
    return facts


def _in_the_open(recipe: ExpertRecipe, policy: Policy, episodes: int) -> dict[str, float]:
    track, rows = Track(recipe), []
    with global_numpy_seed(0):
        for episode in range(episodes):
            observation, over = track.reset(seed=episode), False
            total = path = upside_down = steps = 0.0
            while not over:
                before = track.xy
                action = policy.mean(observation)
                action = np.clip(action + np.random.normal(0, NOISE, action.shape), -1, 1)
                observation, reward, failed, late = track.step(action)
                over = failed or late
                total, steps = total + reward, steps + 1
                path += float(np.linalg.norm(track.xy - before))
                upside_down += track.up < 0
            rows.append((total, path, steps, upside_down >= FLIPPED_STEPS))
    means = np.mean(rows, axis=0).tolist()
    return dict(zip(("return", "distance", "steps", "flipped"), means, strict=True))


def _in_a_maze(recipe: ExpertRecipe, policy: Policy, episodes: int) -> dict[str, Any] | None:
    from fidec.make.navigate import NavigateWorld
    from fidec.make.recipes import RECIPES

    maze = RECIPES.get(f"{recipe.name}maze-large-navigate-v0")
    if maze is None:
        return None
    world, goals, flips = NavigateWorld(maze, {recipe.name: policy}), [], []
    with global_numpy_seed(0):
        for episode in range(episodes):
            flips.append(flipped(world.episode(0, "val", episode)["qpos"]))
            goals.append(world.goals)
    return {
        "data": maze.name,
        "rows": maze.episode_rows,
        "goals": goals,
        "goals_per_episode": float(np.mean(goals)),
        "flipped": float(np.mean(flips)),
    }
