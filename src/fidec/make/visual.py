"""Manipulation `play` episodes as OGBench's visual environments show them: 64 x 64 pictures instead of states.

Physics, oracles, seeds and actions are those of the state data, row for row; only what is stored of a state is
another thing. So `visual-X-play-v0` and `X-play-v0` made with the same seed have the same qpos, qvel and actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.envs.fast_render import install
from fidec.make.play import PlayWorld


class VisualPlayWorld(PlayWorld):
    """A play world that stores pictures, drawn as `recipe.rendering` says: "exact" (as OGBench draws) or "fast"."""

    def _open(self) -> Any:
        env = super()._open()
        if self.recipe.rendering == "fast":
            install(env)
        # OGBench draws a picture at every reset and for every new target. We draw one for each row, when it is due.
        env.get_pixel_observation = lambda: None
        return env

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return self.env.render()
