"""precision: the cost of the displacement by the behaviour's own width at the state, in nats.

    D = 1/2 delta^T P delta,    P = Cov[a | s]^-1

It is the KL of a shift for a Gaussian behaviour with the covariance of the state's flow samples. It is not negative,
and it needs neither a score nor a time. The widths of several modes include the distance between them, so between
narrow modes it is too low. With a frozen flow P is computed once, from the stored proposals.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.algos.constraints import NATS, Constraint, Costs, Model, Move
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Precision(Constraint):
    """1/2 delta^T P delta with the precision P of flow samples of the state."""

    covariance: fisher.Covariance = "diagonal"
    """Widths along each action dimension (diagonal), or the whole matrix, shrunk towards its diagonal (full)."""
    shrinkage: float = 0.5
    """Share of the diagonal in a full covariance."""
    width_floor: float = 0.01
    """The smallest width, where the bounds of actions are 2 apart: behaviour that never varies has none."""
    state_samples: int = 16
    """Flow samples of a state that its width is measured from. With a frozen flow these are its proposals."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.shrinkage <= 1:
            raise ConfigError(f"shrinkage must lie in [0, 1], not {self.shrinkage}")
        if not self.width_floor > 0:
            raise ConfigError(f"width_floor must be positive, not {self.width_floor}")
        if not self.state_samples >= 4:
            raise ConfigError(f"state_samples must be at least 4 to measure a width, not {self.state_samples}")

    @property
    def unit(self) -> str:
        return NATS

    def prepare_states(self, samples: Float[Array, "states m d"]) -> dict[str, Array]:
        if samples.shape[1] < 4:
            raise ConfigError(
                f"the constraint precision needs at least 4 proposals of a state, not {samples.shape[1]}: give "
                "--algo.proposals 8 or more"
            )
        how = {"covariance": self.covariance, "shrinkage": self.shrinkage}
        return {"precision": fisher.precision(samples, floor=self.width_floor, **how)}

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        precision = model.precision
        if precision is None:
            noise = jax.random.normal(key, (self.state_samples, *move.base.shape))
            samples = jax.lax.stop_gradient(model.sample(noise))
            precision = self.prepare_states(jnp.swapaxes(samples, 0, 1))["precision"]
        return fisher.shift_cost(move.displacement, precision)


CONSTRAINT = Precision
