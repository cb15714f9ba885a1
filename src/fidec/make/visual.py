"""Manipulation `play` episodes with 64 x 64 images as observations, as in OGBench's visual environments.

Physics, oracles, seeds and actions are those of the state data: `visual-X-play-v0` and `X-play-v0` made with the same
seed have the same qpos, qvel and actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.envs.fast_render import install
from fidec.make.play import PlayWorld


class VisualPlayWorld(PlayWorld):
    """A play world that stores images. `recipe.rendering` is "exact" (as OGBench renders) or "fast"."""

    def _open(self) -> Any:
        env = super()._open()
        if self.recipe.rendering == "fast":
            install(env)
        # OGBench renders at every reset, step and new target. Here one image is rendered for each row.
        env.get_pixel_observation = lambda: None
        return env

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return self.env.render()
