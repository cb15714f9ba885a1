"""precision: the cost of the displacement by the behaviour's own width at the state, in nats.

    D = 1/2 delta^T P delta,    P = Cov[a | s]^-1

It is the KL of a shift for a Gaussian behaviour with the covariance of the state's flow samples. It is not negative,
and it needs neither a score nor a time. The widths of several modes include the distance between them, so between
narrow modes it is too low. With a frozen flow P is computed once, from the stored proposals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.algos.constraints import NATS, Constraint, Costs, Model, Move
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.types import PRNGKey

# The smallest width, where the bounds of actions are 2 apart: behaviour that never varies has none.
WIDTH_FLOOR = 0.01
STATE_SAMPLES = 16  # of the flow, to measure a width. With a frozen flow these are its proposals.


@dataclass(frozen=True)
class Precision(Constraint):
    """1/2 delta^T P delta with the precision P of each action dimension, from flow samples of the state."""

    unit: ClassVar[str] = NATS

    def prepare_states(self, samples: Float[Array, "states m d"]) -> dict[str, Array]:
        if samples.shape[1] < 4:
            raise ConfigError(
                f"the constraint precision needs at least 4 proposals of a state, not {samples.shape[1]}: give "
                "--algo.proposals 8 or more"
            )
        return {"precision": fisher.precision(samples, floor=WIDTH_FLOOR)}

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        precision = model.precision
        if precision is None:
            noise = jax.random.normal(key, (STATE_SAMPLES, *move.base.shape))
            samples = jax.lax.stop_gradient(model.sample(noise))
            precision = self.prepare_states(jnp.swapaxes(samples, 0, 1))["precision"]
        return fisher.shift_cost(move.displacement, precision)


CONSTRAINT = Precision
