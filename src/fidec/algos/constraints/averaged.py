"""averaged: K scores at noised copies of fresh flow samples of the state.

Their mean outer product is the covariance of the state's score, which is twice the second-order KL of a rigid shift.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array

from fidec.algos.constraints import Actions, Model, Quadratic
from fidec.ops import fisher, flow
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Averaged(Quadratic):
    """The score at noised copies of flow samples. It needs K further flow solves for each state."""

    samples: int = 4
    """K: the number of scores that are averaged."""

    def points(self, actions: Actions, model: Model, key: PRNGKey) -> tuple[Array, Array]:
        """Noised copies of fresh flow samples, and their times."""
        t_eps, width = self.time(model), self.t_width
        return fisher.state_points(model.sample, actions.shape, key, samples=self.samples, t_eps=t_eps, width=width)

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores:
        x, t = self.points(actions, model, key)
        return flow.velocity_to_score(model.velocity(x, t), x, t)


CONSTRAINT = Averaged
