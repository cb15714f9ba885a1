"""ReBRAC: a deterministic policy with penalties on its distance to the data, in the actor and in the critic.

    critic  E (Q_i(s, a) - r - gamma m [min Qbar(s', a') - alpha_2 |a' - a'_data|^2])^2
            a' = clip(tanh mubar(s') + clipped noise)
    actor   every second step:  -E min Q(s, pi(s)) / mean|min Q| + alpha_1 E |pi(s) - a|^2,   pi = tanh mu

Target actor and target critic are updated on actor steps only. The other steps change neither the actor nor its
Adam. The code that the benchmark ran has one Adam for all modules, whose momentum moves the actor on these steps too
(`joint_momentum`, the preset `released`). Online it explores with pi(s) and clipped noise, `exploration_noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn, optim
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.ops import values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class ReBRACConfig(options.ValueConfig):
    """ReBRAC's options."""

    q_aggregate: values.Aggregate = "min"
    """How the critics are combined in the TD target and in the actor's loss: the lowest (min), the mean, or
    the lower of two that are drawn at random (random_pair)."""
    actor_penalty: float = 0.1
    """alpha_1: weight of the distance to the data's action in the actor's loss."""
    critic_penalty: float = 0.01
    """alpha_2: weight of the distance to the data's next action in the critic's target."""
    actor_interval: int = 2
    """Steps between updates of the actor and of the targets; the first of them is at this step."""
    noise: float = 0.2
    """Standard deviation of the noise on the target's action."""
    noise_limit: float = 0.5
    """Largest magnitude of that noise."""
    joint_momentum: bool = False
    """Step the actor's Adam with zero gradients on skipped steps, so that momentum still moves the actor."""
    exploration_noise: float = 0.2
    """Standard deviation of the noise on the action for exploration online."""
    exploration_noise_limit: float = 0.5
    """Largest magnitude of that noise."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "actor_interval")
        options.not_negative(self, "actor_penalty", "critic_penalty", "noise", "noise_limit")
        options.not_negative(self, "exploration_noise", "exploration_noise_limit")


def perturb(key: PRNGKey, actions: jax.Array, std: float, limit: float) -> jax.Array:
    """Add Gaussian noise of bounded magnitude to actions, and clip them to the box."""
    noise = std * jax.random.normal(key, actions.shape)
    return jnp.clip(actions + jnp.clip(noise, -limit, limit), -1.0, 1.0)


def make(config: ReBRACConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    actor: Any = nn.Actor(config.hidden, spec.action_dim, encoder=encoder)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "actor": (actor, "s")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic", "actor"))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        def critic_loss(own, params):
            next_actions = jnp.tanh(actor.apply(state.target["actor"], batch.next_observations))
            next_actions = perturb(key, next_actions, config.noise, config.noise_limit)
            next_q = critic.apply(state.target["critic"], batch.next_observations, next_actions)
            distance = jnp.sum((next_actions - batch.next_actions) ** 2, axis=-1)
            next_v = config.aggregate(next_q, key) - config.critic_penalty * distance
            return backbone.critic_loss(critic, own, batch, next_v, config.discount)

        def actor_loss(own, params):
            actions = jnp.tanh(actor.apply(own, batch.observations))
            q = config.aggregate(critic.apply(params["critic"], batch.observations, actions), key)
            distance = jnp.mean(jnp.sum(values.weigh((actions - batch.actions) ** 2, batch.action_weights), axis=-1))
            loss = config.actor_penalty * distance - values.value_scale(q) * q.mean()
            return loss, {"q_policy": q.mean(), "distance": distance}

        due = (state.step + 1) % config.actor_interval == 0  # FQL counts steps from 1
        grads, metrics = optim.gradients({"critic": critic_loss, "actor": actor_loss}, state.params)
        if config.joint_momentum:
            grads["actor"] = jax.tree.map(lambda g: jnp.where(due, g, 0.0), grads["actor"])
        params, optimiser = optim.step(adam, grads, state.params, state.optimiser)

        def if_due(new, old):
            return jax.tree.map(lambda a, b: jnp.where(due, a, b), new, old)

        if not config.joint_momentum:
            params["actor"] = if_due(params["actor"], state.params["actor"])
            optimiser["actor"] = if_due(optimiser["actor"], state.optimiser["actor"])
        target = {
            name: optim.polyak(state.params[name], state.target[name], config.target_rate) for name in state.target
        }
        return State(params, if_due(target, state.target), optimiser, state.step + 1), metrics

    def act(state: State, observations, key, noise=1.0):
        return jnp.tanh(actor.apply(state.params["actor"], observations))

    def explore(state: State, observations, key):
        actions = act(state, observations, key)
        return perturb(key, actions, config.exploration_noise, config.exploration_noise_limit)

    return Algorithm(init, update, act, lambda state: backbone.keep_params(state, "actor"), explore=explore)


METHOD = Method(
    name="rebrac",
    summary="deterministic policy with penalties on its distance to the data, in actor and critic",
    config=ReBRACConfig,
    make=make,
    presets={"released": {"joint_momentum": True}},
    parity="released",
    logs={
        "q_policy": "mean of min Q at the policy's actions",
        "distance": "mean squared distance to the data's action, summed over dimensions",
    },
)
