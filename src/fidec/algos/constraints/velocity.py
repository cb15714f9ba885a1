"""velocity: K vectors v / (1 - t) at noised copies of fresh flow samples of the state. The authors' released code.

v / (1 - t) is not the score, which is (t v - x) / (1 - t).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from fidec.algos.constraints import Actions, Model, Quadratic
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Velocity(Quadratic):
    """v / (1 - t) at the points of `averaged`."""

    samples: int = 4
    """K."""

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores:
        x, t = fisher.state_points(
            model.sample,
            actions.shape,
            key,
            samples=self.samples,
            t_eps=self.time(model),
            width=self.t_width,
        )
        return model.velocity(x, t) / jnp.maximum(1.0 - t, 1e-6)


CONSTRAINT = Velocity
