"""The constraints of FiDec's trust region, one file each.

A constraint gives each base action a_0 a penalty D(delta; s, a_0). FiDec keeps the mean penalty at its budget. There
are two kinds:

- `Quadratic`: c delta^T F delta with the metric F = (1/K) sum_k s_k s_k^T + rho I. These constraints differ in the
  scores s_k.
- `KL`: an estimate of KL(refined || behaviour) in nats.

`precision` and `information` are the cost of a shift in nats: without a trace, they know how wide the behaviour is.

A new constraint is one module of this package with a `CONSTRAINT`, or an entry point of the group
`fidec.constraints`. It is a frozen dataclass that derives from `Constraint`, `Quadratic` or `KL`. Its fields are
options of FiDec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.errors import ConfigError
from fidec.ops import fisher, flow, jacobian
from fidec.register import Register, check_choices
from fidec.types import PRNGKey

Actions = Float[Array, "b d"]
Costs = Float[Array, " b"]
NATS, PENALTY = "nats", "of the penalty"  # units of a budget
BUDGETS = {NATS: 0.5, PENALTY: 0.001}  # by default


class Move(NamedTuple):
    """A residual map at a batch of base actions."""

    field: jacobian.Field
    """delta(a); row i of the result depends on row i of the actions alone."""
    base: Actions
    """a_0."""
    displacement: Actions
    """delta(a_0)."""


class Model(NamedTuple):
    """The behaviour flow at a batch of states."""

    velocity: flow.Velocity
    sample: Callable[[Array], Array]
    """Maps noise, with any leading axes, to actions."""
    anchors: Actions
    """Samples of the density that the velocity field describes."""
    t_eps: fisher.Time | None = None
    """The calibrated time, if the constraint's own is `auto`."""
    scores: Float[Array, "b k d"] | None = None
    """The scores of a quadratic constraint at the base actions, if they were computed before."""
    precision: Float[Array, "b d"] | None = None
    """The precision of the behaviour at each state, if it was computed before."""

    @classmethod
    def at(cls, behaviour: Any, params: Any, observations: Any, **known: Any) -> Model:
        """The flow policy `behaviour` at these states."""
        sample = partial(behaviour.sample, params, observations)
        return cls(behaviour.velocity(params, observations), sample, **known)


@dataclass(frozen=True)
class Constraint:
    """A constraint with its options."""

    t_eps: float | Literal["auto"] = 0.8
    """The time near 1 at which the score is evaluated; auto chooses it from the data by score matching."""
    t_width: float = 0.0
    """If positive, the time is drawn from [t_eps - t_width, t_eps]."""

    unit: ClassVar[str] = PENALTY
    """Of the penalty and its budget: `NATS` or `PENALTY`."""

    def __post_init__(self):
        check_choices(self)
        if self.t_eps != "auto" and not 0 < self.t_eps < 1:
            raise ConfigError(f"t_eps must lie strictly between 0 and 1, or be auto, not {self.t_eps}")
        if not self.t_width >= 0:
            raise ConfigError(f"t_width must not be negative, but is {self.t_width}")
        if not getattr(self, "samples", 1) >= 1:
            raise ConfigError(f"samples must be at least 1, not {getattr(self, 'samples')}")  # noqa: B009 (of a subclass)

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        """The cost of each displacement."""
        raise NotImplementedError

    def mean(self, costs: Costs) -> Array:
        """The mean penalty of a batch, which is kept at the budget."""
        return costs.mean()

    def chunk_factor(self, chunk: int) -> float:
        """The factor of the penalty for chunks of actions, so that the budget is that of a whole chunk.

        It is 1 for a penalty that grows with the dimensions, such as a KL, and their number of steps for a mean.
        """
        return 1.0

    def anchors(self, velocity: flow.Velocity, base: Actions, key: PRNGKey, steps: int) -> Actions:
        """The actions at which the constraint is evaluated: the base actions."""
        return base

    def prepare(self, model: Model, base: Actions, key: PRNGKey, steps: int) -> dict[str, Array]:
        """Fields of `Model` that need the flow but not the displacement; a frozen flow computes them once."""
        return {}

    def prepare_states(self, samples: Float[Array, "states m d"]) -> dict[str, Array]:
        """Fields of `Model` with a row for each state, from m samples of its behaviour; likewise computed once."""
        return {}

    def time(self, model: Model) -> fisher.Time:
        """t_eps as a number."""
        time = model.t_eps if self.t_eps == "auto" else self.t_eps
        if time is None:
            raise ConfigError("t_eps is auto, but there is no calibrated time")
        return time


@dataclass(frozen=True)
class Quadratic(Constraint):
    """c delta^T F delta with F = (1/K) sum_k s_k s_k^T + rho I, for the scores s_k of a subclass."""

    damping: float = 1e-3
    """rho: added to every eigenvalue of F."""
    scale: fisher.Scale = "mean"
    """The constant c: delta^T F delta / tr F (mean), half of that (half_trace), or delta^T F delta / 2 (half)."""

    def __post_init__(self):
        super().__post_init__()
        if not self.damping >= 0:
            raise ConfigError(f"damping must not be negative, but is {self.damping}")

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> fisher.Scores | None:
        """The vectors s_k at these actions; None means F = I."""
        raise NotImplementedError

    def form(self, displacement: Actions, scores: fisher.Scores | None) -> Costs:
        """c delta^T F delta."""
        return fisher.penalty(displacement, scores, damping=self.damping, scale=self.scale)

    def chunk_factor(self, chunk: int) -> float:
        return 1.0 if self.scale == "half" else float(chunk)

    def prepare(self, model: Model, base: Actions, key: PRNGKey, steps: int) -> dict[str, Array]:
        scores = None if self.t_eps == "auto" else self.scores(base, model, key)
        return {} if scores is None else {"scores": jnp.swapaxes(scores, 0, 1)}  # a row for each action

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        known = model.scores
        scores = self.scores(move.base, model, key) if known is None else jnp.swapaxes(known, 0, 1)
        return self.form(move.displacement, scores)


@dataclass(frozen=True)
class KL(Constraint):
    """An estimate of KL(refined || behaviour) in nats, by a subclass.

    It is evaluated at accurate samples of the flow's own density (Heun's method). At the policy's base actions, by
    Euler steps and a clip, a map could lower it below zero by undoing their error. Where the score is that of a
    smoother density it may still be negative: its magnitude is constrained, so that training gains nothing by it.
    """

    unit: ClassVar[str] = NATS

    def mean(self, costs: Costs) -> Array:
        return jnp.abs(costs.mean())

    def anchors(self, velocity: flow.Velocity, base: Actions, key: PRNGKey, steps: int) -> Actions:
        return flow.sample(velocity, jax.random.normal(key, base.shape), steps, "heun")

    def prepare(self, model: Model, base: Actions, key: PRNGKey, steps: int) -> dict[str, Array]:
        return {"anchors": self.anchors(model.velocity, base, key, steps)}

    def score(self, model: Model) -> fisher.ScoreFunction:
        """The behaviour's score as a function of actions and a key."""
        return fisher.scaled_score(model.velocity, self.time(model), self.t_width)


# With t_eps auto: the time until it is first chosen, and the updates between two choices.
START_TIME, CALIBRATE_EVERY = 0.8, 1000


def calibrate(time: Array, step: Array, velocity: flow.Velocity, actions: Actions, key: PRNGKey) -> Array:
    """t_eps by score matching on the data's actions, if a choice is due at this step, else as it is."""
    due = (step > 0) & (step % CALIBRATE_EVERY == 0)
    return jax.lax.cond(due, lambda: fisher.choose_time(velocity, actions, key)[0], lambda: time)


CONSTRAINTS = Register("constraint", __name__, "CONSTRAINT", type, "fidec.constraints")


def build(name: str, options: Any) -> Any:
    """The constraint of that name; attributes of `options` with the names of its fields set them."""
    kind: Any = CONSTRAINTS.get(name)
    return kind(**{f.name: getattr(options, f.name) for f in dataclasses.fields(kind) if hasattr(options, f.name)})
