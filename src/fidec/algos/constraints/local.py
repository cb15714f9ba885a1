"""local: one score, at the base action itself and without added noise. The paper's constraint, of rank 1."""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import Actions, Model, Quadratic
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Local(Quadratic):
    """(t v(a_0, t) - a_0) / (1 - t)."""

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores:
        return fisher.local_scores(model.velocity, actions, key, t_eps=self.time(model), width=self.t_width)


CONSTRAINT = Local
