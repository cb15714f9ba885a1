"""Manipulation `play` episodes: OGBench's plan oracles move random objects to random places.

`visual-X-play-v0` has 64 x 64 images as observations, as in OGBench's visual environments. Its qpos, qvel and actions
are those of `X-play-v0` made with the same seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.envs.render import install
from fidec.errors import EnvError
from fidec.make.recipes import Recipe
from fidec.make.world import Rows, Snapshot, open_env, seed_generators

_MAX_ATTEMPTS = 50


class PlayWorld:
    """A manipulation environment in data-collection mode with one oracle for each kind of object in it."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.family = recipe.env_id.removeprefix("visual-")
        self.env = open_env(recipe.env_id, mode="data_collection")
        if recipe.rendering is not None:
            # OGBench renders at every reset, step and new target. Here one image is rendered for each row.
            self.env.get_pixel_observation = lambda: None
        if recipe.rendering == "fast":
            install(self.env)
        self._oracles = _oracles(self.env, recipe, self.family)
        self._snapshot = Snapshot(self.env)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        """The stored observation of the current state."""
        return state if self.recipe.rendering is None else self.env.render()

    def episode(self, seed: int, split: str, index: int) -> dict[str, np.ndarray]:
        """Row `t` holds the state before action `t`; the last row is terminal.

        Scene episodes in which the cube leaves the visible area are discarded, as OGBench does.
        """
        for attempt in range(_MAX_ATTEMPTS):
            arrays = self._try(seed, split, index, attempt)
            if not self.family.startswith("scene") or _cube_stays_visible(arrays["qpos"]):
                return arrays
        raise EnvError(
            f"{self.recipe.name}, {split} episode {index}: the cube left the visible area in {_MAX_ATTEMPTS} "
            "attempts in a row. OGBench's data excludes such episodes. Use another seed."
        )

    def _try(self, seed: int, split: str, index: int, attempt: int) -> dict[str, np.ndarray]:
        env, recipe = self.env, self.recipe
        self._snapshot.restore()
        ob, info = env.reset(seed=seed_generators(seed, split, index, attempt))
        seen = self._observe(ob)
        p_stack = _stacking_probability(self.family)
        oracle = self._oracles[info["privileged/target_task"]]
        oracle.reset(ob, info)

        rows = Rows(recipe.dtypes)
        for _ in range(recipe.episode_rows):
            action = np.clip(oracle.select_action(ob, info), -1, 1)
            next_ob, _, _, _, info = env.step(action)
            following = self._observe(next_ob)
            if oracle.done:
                target_ob, target_info = env.set_new_target(p_stack=p_stack)
                oracle = self._oracles[target_info["privileged/target_task"]]
                oracle.reset(target_ob, target_info)
            rows.step(seen, action, info)
            if recipe.has_buttons:
                rows.append(button_states=info["prev_button_states"])
            ob, seen = next_ob, following
        return rows.arrays()


def _stacking_probability(family: str) -> float:
    if family.startswith("cube-single"):
        return 0.0
    if family.startswith("cube-double"):
        return np.random.uniform(0.0, 0.25)
    return 0.5


def _cube_stays_visible(qpos: np.ndarray) -> bool:
    """OGBench's health check of scene episodes: not too far right, and far left only inside the drawer."""
    y, z = qpos[:, 15], qpos[:, 16]
    lost_left = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
    return not ((y >= 0.29) | lost_left).any()


def _oracles(env: Any, recipe: Recipe, family: str) -> dict[str, Any]:
    from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
    from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
    from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle

    kwargs: dict[str, Any] = {"env": env, "noise": recipe.noise, "noise_smoothing": recipe.noise_smoothing}
    if family.startswith("cube"):
        return {"cube": CubePlanOracle(**kwargs)}
    if family.startswith("puzzle"):
        return {"button": ButtonPlanOracle(gripper_always_closed=True, **kwargs)}
    return {
        "cube": CubePlanOracle(**kwargs),
        "button": ButtonPlanOracle(**kwargs),
        "drawer": DrawerPlanOracle(**kwargs),
        "window": WindowPlanOracle(**kwargs),
    }
