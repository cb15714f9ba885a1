"""Options that the benchmark's methods share, and checks of their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from fidec.errors import ConfigError
from fidec.ops import values
from fidec.register import check_choices
from fidec.types import PRNGKey, Spec


def at_least_one(config: Any, *names: str) -> None:
    """Raise ConfigError if one of these options is below 1."""
    for name in names:
        if not getattr(config, name) >= 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(config, name)}")


def not_negative(config: Any, *names: str) -> None:
    """Raise ConfigError if one of these options is below 0 or not a number."""
    for name in names:
        if not getattr(config, name) >= 0:
            raise ConfigError(f"{name} must not be negative, but is {getattr(config, name)}")


def positive(config: Any, *names: str) -> None:
    """Raise ConfigError if one of these options is not above 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} must be positive, not {getattr(config, name)}")


@dataclass(frozen=True)
class NetworkConfig:
    """Options of every method on the FQL backbone."""

    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Widths of the hidden layers of every network."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""

    def __post_init__(self):
        check_choices(self)
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be positive, not {self.learning_rate}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"every hidden width must be at least 1, not {self.hidden}")


@dataclass(frozen=True)
class ValueConfig(NetworkConfig):
    """Options of every method that learns a value."""

    discount: float = 0.99
    """The discount gamma."""
    target_rate: float = 0.005
    """Polyak rate of the target networks."""
    critics: int = 2
    """Number of critics, with independent weights."""
    q_aggregate: values.Aggregate = "mean"
    """How the critics are combined in the TD target: the mean, the lowest (min), or the lower of two that are drawn
    at random (random_pair)."""
    pessimism: float = 0.0
    """rho: with q_aggregate mean, the value is the mean of the critics minus rho of their standard deviations."""

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "critics")
        not_negative(self, "pessimism")
        if self.pessimism and self.q_aggregate != "mean":
            raise ConfigError(
                f"pessimism lowers the mean of the critics: it needs q_aggregate mean, not {self.q_aggregate}"
            )
        if (self.pessimism or self.q_aggregate == "random_pair") and self.critics < 2:
            name = "pessimism" if self.pessimism else "q_aggregate random_pair"
            raise ConfigError(f"{name} needs at least 2 critics, not {self.critics}")
        if not 0 < self.target_rate <= 1:
            raise ConfigError(f"target_rate must lie in (0, 1], not {self.target_rate}")
        if not 0 <= self.discount < 1:
            raise ConfigError(f"discount must lie in [0, 1), not {self.discount}")

    def aggregate(self, q: jax.Array, key: PRNGKey) -> jax.Array:
        """One value from those of the critics, (critics, ...). A random pair is drawn from the key."""
        return values.aggregate(q, self.q_aggregate, self.pessimism, key)


@dataclass(frozen=True)
class FlowConfig(ValueConfig):
    """Options of methods with a TD critic and a flow."""

    flow_steps: int = 10
    """Euler steps from noise to an action."""

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "flow_steps")


@dataclass(frozen=True)
class BehaviourConfig(FlowConfig):
    """Options of methods whose flow only imitates the data."""

    train_flow: bool = True
    """Train the behaviour flow. False keeps it and its optimiser state as they are: a flow frozen online."""
    proposals: int = 8
    """M: with a frozen flow from another run (--flow), its actions that are drawn for each next state."""

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "proposals")


def require_flat(spec: Spec, method: str) -> None:
    """Raise ConfigError for images, for methods whose published networks take vectors only."""
    for part in spec.inputs:
        if len(part.shape) != 1:
            which = f": the part {part.name!r} is an image. Leave it out, or choose a method with an encoder"
            raise ConfigError(
                f"{method} takes flat observations, not of shape {part.shape}{which if part.name else ''}"
            )
