"""velocity: K vectors v / (1 - t) at noised copies of fresh flow samples of the state. The authors' released code.

v / (1 - t) is not the score, which is (t v - x) / (1 - t).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from fidec.algos.constraints import Actions, Model
from fidec.algos.constraints.averaged import Averaged
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Velocity(Averaged):
    """v / (1 - t) at the points of `averaged`."""

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores:
        x, t = self.points(actions, model, key)
        return model.velocity(x, t) / jnp.maximum(1.0 - t, 1e-6)


CONSTRAINT = Velocity
