"""Code that the benchmark's methods share: initial states, updates, and the flow policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fidec import nn, optim
from fidec.algos.common.base import Act, ActWithBase, Choose, State
from fidec.algos.common.options import ValueConfig
from fidec.errors import ConfigError
from fidec.ops import flow, policies, values
from fidec.parts import Observations
from fidec.types import Batch, Metrics, Params, PRNGKey, Spec


def encoder(spec: Spec) -> nn.Impala | nn.Parts | None:
    """The encoder of observations: convolutions for images, None for vectors."""
    for part in spec.inputs:
        which = f"of the part {part.name!r} " if part.name else ""
        if len(part.shape) not in (1, 3):
            raise ConfigError(
                f"observations {which}must be vectors or images (height, width, channels), not of shape {part.shape}"
            )
        if part.image and part.dtype != "uint8":  # the encoder divides by 255
            raise ConfigError(f"images {which}must be uint8, from 0 to 255, not {part.dtype}")
    if spec.parts:
        return nn.Parts(tuple(part.name for part in spec.parts if part.image))
    return nn.Impala() if spec.images else None


def init_modules(key: PRNGKey, networks: Mapping[str, tuple[Any, str]], spec: Spec) -> dict[str, Params]:
    """Parameters by module. `networks` gives each network and its inputs: s(tate), a(ction), t(ime)."""
    examples = {
        "s": jax.tree.map(jnp.asarray, spec.zeros(1)),
        "a": jnp.zeros((1, spec.action_dim)),
        "t": jnp.zeros((1, 1)),
    }
    keys = jax.random.split(key, len(networks))
    return {
        name: network.init(k, *(examples[letter] for letter in inputs))
        for k, (name, (network, inputs)) in zip(keys, networks.items(), strict=True)
    }


def start(
    params: dict[str, Params],
    optimisers: optim.Optimisers,
    targets: Sequence[str] = (),
    constants: Mapping[str, Params] | None = None,
) -> State:
    """The state before the first step: targets equal their networks, moments are zero.

    `constants` are parameters without an optimiser.
    """
    return State(
        params={**params, **(constants or {})},
        target={name: jax.tree.map(jnp.copy, params[name]) for name in targets},
        optimiser={name: optim.optimiser_of(optimisers, name).init(module) for name, module in params.items()},
        step=jnp.zeros((), jnp.int32),
    )


def descend(
    state: State,
    losses: Mapping[str, Any],
    optimisers: optim.Optimisers,
    target_rate: float | Mapping[str, Any] = 0.0,
    frozen: Sequence[str] = (),
) -> tuple[State, Metrics]:
    """One update: a simultaneous step on every module's own loss, and a step of the targets."""
    after, metrics = gradient_step(state, losses, optimisers, frozen)
    return advance(state, after, target_rate), metrics


def gradient_step(
    state: State,
    losses: Mapping[str, Any],
    optimisers: optim.Optimisers,
    frozen: Sequence[str] = (),
    transform: Callable[[dict[str, Params], Metrics], dict[str, Params]] = lambda grads, metrics: grads,
) -> tuple[State, Metrics]:
    """One simultaneous step on every module's own loss. The loss of a `frozen` module is only logged.

    `transform(gradients, metrics)` gives the gradients that are used. The targets and the step counter do not change.
    """
    losses = {name: _without_gradient(loss) if name in frozen else loss for name, loss in losses.items()}
    grads, metrics = optim.gradients(losses, state.params)
    # The gradient of a frozen module is zero, but momentum would still change it.
    grads = transform({name: grad for name, grad in grads.items() if name not in frozen}, metrics)
    params, optimiser = optim.step(optimisers, grads, state.params, state.optimiser)
    return state._replace(params=params, optimiser=optimiser), metrics


def advance(before: State, after: State, target_rate: float | Mapping[str, Any]) -> State:
    """`after` with the next step number and updated targets, with one rate for all or one for each.

    The targets follow the parameters from before the step, as in the FQL backbone.
    """
    rates = target_rate if isinstance(target_rate, Mapping) else dict.fromkeys(before.target, target_rate)
    target = {name: optim.polyak(before.params[name], old, rates[name]) for name, old in before.target.items()}
    return after._replace(target=target, step=before.step + 1)


def _without_gradient(loss: Any) -> Any:
    """The loss with a gradient of zero, which needs no backward pass."""
    return lambda own, params: loss(jax.lax.stop_gradient(own), params)


def frozen_modules(config: Any) -> tuple[str, ...]:
    """The behaviour flow, if `train_flow` is False."""
    return () if config.train_flow else ("flow",)


def keep_params(state: State, *modules: str) -> State:
    """A state with only the parameters that `act` needs."""
    return state._replace(params={name: state.params[name] for name in modules}, target=None, optimiser=None)


def noise_for(key: PRNGKey, observations: Any, spec: Spec, number: int) -> jax.Array:
    """Standard normal (number, *batch, d): `number` draws for each observation."""
    return jax.random.normal(key, (number, *spec.leading(observations), spec.action_dim))


class FlowPolicy:
    """A velocity field and its Euler sampler, conditioned on observations."""

    def __init__(self, hidden: Sequence[int], spec: Spec, steps: int):
        self.network: Any = nn.VelocityField(hidden, spec.action_dim, encoder(spec))
        self.action_dim, self.steps = spec.action_dim, steps

    def encode(self, params: Params, observations: Observations) -> jax.Array:
        """Features of images; vectors are returned unchanged."""
        return self.network.apply(params, observations, method="encode")

    def velocity(self, params: Params, observations: Observations, encoded: bool = False) -> flow.Velocity:
        """The velocity field of these states, which are encoded once; x may have further leading axes."""
        features = observations if encoded else self.encode(params, observations)
        return lambda x, t: self.network.apply(params, features, x, t, encoded=True)

    def sample(
        self, params: Params, observations: Observations, noise: jax.Array, encoded: bool = False
    ) -> jax.Array:
        """mu(s, z), clipped to the box."""
        actions = flow.sample(self.velocity(params, observations, encoded), noise, self.steps)
        return jnp.clip(actions, -1.0, 1.0)

    def loss(self, params: Params, batch: Batch, key: PRNGKey) -> jax.Array:
        """Flow matching on the data's actions."""
        velocity = self.velocity(params, batch.observations)
        return flow.matching_loss(velocity, batch.actions, key, batch.action_weights)


def critic_loss(
    critic: Any,
    own: Params,
    batch: Batch,
    next_values: jax.Array,
    discount: float,
    transform: Callable[[jax.Array], jax.Array] = lambda goal: goal,
) -> tuple[jax.Array, Metrics]:
    """E (Q(s, a) - y)^2, y = r + gamma m V(s'), a mean over heads and rows; `transform` changes the target y."""
    goal = transform(values.td_target(batch.rewards, batch.masks, next_values, discount))
    q = critic.apply(own, batch.observations, batch.actions)
    return values.td_loss(q, goal, batch.value_weights), {"q_data": q.mean(), "td_target": goal.mean()}


def policy_critic_loss(
    critic: Any,
    own: Params,
    target: Params,
    batch: Batch,
    next_actions: jax.Array,
    config: ValueConfig,
    key: PRNGKey,
) -> tuple[jax.Array, Metrics]:
    """E (Q(s, a) - r - gamma m Qbar(s', a'))^2 for the policy's own next actions. The key draws a random pair.

    Of several next actions, (count, rows, d), it is the one with the highest mean of the target critics.
    """
    next_q = critic.apply(target, batch.next_observations, next_actions)
    if next_actions.ndim > batch.actions.ndim:
        best = jnp.argmax(next_q.mean(axis=0), axis=0)
        next_q = jnp.take_along_axis(next_q, best[None, None], axis=1)[:, 0]
    return critic_loss(critic, own, batch, config.aggregate(next_q, key), config.discount)


def student_act(
    student: Any, teacher: FlowPolicy, spec: Spec, value: Callable[[dict[str, Params], Any, jax.Array], jax.Array]
) -> ActWithBase:
    """`act_with_base` of a policy of one pass, `student`; of several actions the one with the highest `value`."""

    def act_with_base(state: State, observations, key, candidates: int = 1, noise=1.0):
        start = noise * noise_for(key, observations, spec, candidates)
        actions = jnp.clip(student.apply(state.params["policy"], observations, start), -1.0, 1.0)
        base = teacher.sample(state.params["flow"], observations, start)
        if candidates == 1:
            return actions[0], base[0]
        v = value(state.params, observations, actions)
        return policies.best_of(actions, v), policies.best_of(base, v)

    return act_with_base


def flow_act(critic: Any, policy: FlowPolicy, spec: Spec) -> tuple[Act, Choose]:
    """`act` returns one flow sample, `choose` the one of several with the highest mean Q."""

    def draw(state: State, observations, key, number: int, noise):
        start = noise * noise_for(key, observations, spec, number)
        return policy.sample(state.params["flow"], observations, start)

    def act(state: State, observations, key, noise=1.0):
        return draw(state, observations, key, 1, noise)[0]

    def choose(state: State, observations, key, candidates: int, noise=1.0):
        actions = draw(state, observations, key, candidates, noise)
        return policies.best_of(actions, critic.apply(state.params["critic"], observations, actions).mean(axis=0))

    return act, choose
