"""renoised: K scores at noised copies of the base action. FiDec's default.

The velocity field was trained at such points, and the mean outer product of the scores has full rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import Actions, Model, Quadratic
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Renoised(Quadratic):
    """The score at t a_0 + (1 - t) z_k."""

    samples: int = 4
    """K: the number of scores that are averaged."""

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores:
        return fisher.renoised_scores(
            model.velocity, actions, key, samples=self.samples, t_eps=self.time(model), width=self.t_width
        )


CONSTRAINT = Renoised
