"""The scale of values, where a critic's values start, and how long they take to settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fidec import algos, nn
from fidec.data.dataset import OfflineDataset
from fidec.errors import ConfigError
from fidec.train.config import RunConfig


def check_value_start(config: RunConfig, state: Any) -> None:
    """Raise ConfigError if this method has no values to scale or to start at the data's. `state` may be shapes."""
    method = algos.get(config.algo)
    if config.reward_scale not in (None, 1.0) and not method.learns_values:
        raise ConfigError(f"--reward-scale is for methods that learn a value: {config.algo} learns none")
    if config.reward_rule not in (None, "given") and not method.learns_values:
        raise ConfigError(f"--reward-rule is for methods that learn a value: {config.algo} learns none")
    if config.value_start != "data":
        return
    if not method.learns_values:
        raise ConfigError(f"--value-start data is for methods that learn a value: {config.algo} learns none")
    if getattr(config.options, "q_norm", False):
        raise ConfigError("--value-start data needs values in the unit of returns: set --algo.q-norm False")
    if not getattr(state, "params", {}).keys() & set(method.critics):
        raise ConfigError(
            f"--value-start data needs a critic in the state: {config.algo} has no module called "
            f"{' or '.join(method.critics)}. `Method.critics` names those of a method"
        )


def data_value(config: RunConfig, dataset: OfflineDataset) -> float | None:
    """The mean return of the data, in the units of the critic, if values start there (`RunConfig.value_start`)."""
    if config.value_start != "data":
        return None
    mean = float(dataset.returns(config.options.discount).mean())
    return mean * reward_factor(config, dataset) * getattr(config.options, "reward_scale", 1.0)


def reward_factor(config: RunConfig, dataset: OfflineDataset) -> float:
    """The factor of the rewards (`RunConfig.reward_scale`). It is a function of the data, so a resumed run has it."""
    if config.reward_scale != "data":
        return 1.0 if config.reward_scale is None else config.reward_scale
    spread = float(dataset.returns(config.options.discount).std())
    return 1.0 / spread if spread > 0 else 1.0


def start_at(state: Any, value: float, critics: Sequence[str]) -> Any:
    """The state with this value in the output biases of its critics and their targets (`Method.critics`)."""

    def with_bias(modules: dict[str, Any]) -> dict[str, Any]:
        return modules | {name: nn.with_output_bias(modules[name], value) for name in modules.keys() & set(critics)}

    return state._replace(params=with_bias(state.params), target=with_bias(state.target))


def time_constant(config: RunConfig) -> float | None:
    """Updates in which the error of the mean value falls to 1/e: 1 / (tau (1 - gamma^n)). None without targets.

    The targets move by tau of the distance to the critic, and the critic follows them up to the factor gamma^n.
    """
    rate = getattr(config.options, "target_rate", None)
    if rate is None or not algos.get(config.algo).learns_values:
        return None
    return 1.0 / (rate * (1.0 - config.options.discount**config.window.n_step))


def describe_time_constant(config: RunConfig) -> str | None:
    """A sentence on the time constant beside the planned updates, with advice if the run is shorter."""
    constant = time_constant(config)
    if constant is None:
        return None
    updates = config.steps + config.online_steps * config.online.updates
    text = (
        f"values settle with a time constant of {constant:,.0f} updates (target rate {config.options.target_rate:g}, "
        f"discount {config.options.discount:g}, {config.window.n_step}-step returns); the run has {updates:,}"
    )
    if updates >= constant:
        return text
    advice = ["Raise --algo.target-rate", "lower --algo.discount", "give a larger --n-step"]
    advice += [] if config.value_start == "data" else ["start at the data's mean return with --value-start data"]
    text += ". This run is shorter than that, so Q will stay near its initial value. "
    return f"{text}{', '.join(advice[:-1])}, or {advice[-1]}"
