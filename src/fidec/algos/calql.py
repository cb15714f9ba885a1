"""Cal-QL: conservative Q-learning that does not lower Q below the data's returns at the policy's actions.

    critic       sum_i E (Q_i(s, a) - y)^2 + alpha E gap_i,   y = r + gamma m max_j min Qbar(s', a'_j)
                 gap_i = log sum_j exp(Q_i(s, a_j) - log p(a_j)) - Q_i(s, a)
    actor        E [alpha_T log pi(a | s) - min Q(s, a)],   pi = tanh of a Gaussian
    temperature  log alpha_T (H - H*),   H* = -d
    multiplier   with a `lagrange_gap` beta the term is alpha alpha' (gap - beta), and alpha' takes ascent steps on it

The a_j are three groups of equal size: uniform in the box, from pi(s') and from pi(s), all evaluated at s. At the
policy's actions Q is replaced by max(Q, G), where G is the data's return from s on. Without `calibrate` it is CQL.
The reward bias is not published for OGBench; here it is 0. The returns are those of `OfflineDataset.returns`.
The action is the tanh of the policy's mean; exploration is a sample. Online it collects a whole episode, whose
returns are then known, and takes as many updates. Half of each batch is online data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.algos.rlpd import explore_by_sample, soft_losses
from fidec.errors import ConfigError
from fidec.ops import policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec

LARGEST_MULTIPLIER = 1e6


@dataclass(frozen=True)
class CalQLConfig(options.ValueConfig):
    """Cal-QL's options."""

    q_aggregate: values.Aggregate = "min"
    """How the critics are combined in the TD target: the lowest (min), the mean, or
    the lower of two that are drawn at random (random_pair)."""
    alpha: float = 5.0
    """Weight of the conservative term; with `lagrange_gap` it is multiplied by the learned multiplier."""
    lagrange_gap: float | None = None
    """beta: learn a multiplier that keeps the gap at this value; None keeps the weight at `alpha`."""
    calibrate: bool = True
    """Bound Q from below by the data's return, at the policy's actions; without it this is CQL."""
    action_samples: int = 10
    """Actions in each of the three groups of the conservative term, and in the target's maximum."""
    reward_scale: float = 10.0
    """Factor on rewards and returns; every logged Q is in these units."""
    policy_learning_rate: float = 1e-4
    """Learning rate of the policy and of its temperature; `learning_rate` is that of the critics."""
    target_entropy_scale: float = 1.0
    """The target entropy is minus this, times the number of action dimensions."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "alpha")
        options.at_least_one(self, "action_samples")
        for name in ("reward_scale", "policy_learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")


def make(config: CalQLConfig, spec: Spec) -> Algorithm:
    options.require_flat(spec, "calql")
    shape: Any = {"activation": flax.linen.relu, "kernel": nn.orthogonal_init}
    actor: Any = nn.GaussianActor(
        config.hidden, spec.action_dim, **shape, log_std_bounds=(-20.0, 2.0), affine_log_std=True
    )
    critic: Any = nn.Critic(config.hidden, layer_norm=False, ensemble=config.critics, output_scale=0.01, **shape)
    critic_adam, policy_adam = optax.adam(config.learning_rate), optax.adam(config.policy_learning_rate)
    optimisers = {"critic": critic_adam, "actor": policy_adam, "temperature": policy_adam, "multiplier": critic_adam}
    n, learned = config.action_samples, config.lagrange_gap is not None
    gap_goal = config.lagrange_gap or 0.0

    def init(key: PRNGKey) -> State:
        params = backbone.init_modules(key, {"critic": (critic, "sa"), "actor": (actor, "s")}, spec)
        params["temperature"] = jnp.zeros(())
        if learned:
            params["multiplier"] = jnp.ones(())  # log alpha'
        return backbone.start(params, optimisers, targets=("critic",))

    def weight_of(multiplier):
        return config.alpha * jnp.minimum(jnp.exp(multiplier), LARGEST_MULTIPLIER)

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        if config.calibrate and batch.returns is None:
            raise ConfigError("calql needs batch.returns: take dataset.batch(discount), or set calibrate to False")
        bound: Any = config.reward_scale * jnp.asarray(batch.returns) if config.calibrate else -jnp.inf
        target_key, uniform_key, next_key, now_key, actor_key = jax.random.split(key, 5)

        def draw(params, observations, key):
            """n actions for each observation, (n, b, d), and their log-densities."""
            mean, log_std = (jnp.broadcast_to(x, (n, *x.shape)) for x in actor.apply(params["actor"], observations))
            return policies.tanh_normal_sample(key, mean, log_std)

        def conservative(own, params):
            """The mean gap over heads and rows, and metrics of the sampled actions."""
            uniform = jax.random.uniform(uniform_key, (n, *batch.actions.shape), minval=-1.0, maxval=1.0)
            uniform_log = jnp.full(uniform.shape[:-1], spec.action_dim * jnp.log(0.5))
            next_actions, next_log = draw(params, batch.next_observations, next_key)
            now_actions, now_log = draw(params, batch.observations, now_key)
            sampled = critic.apply(own, batch.observations, jnp.concatenate([uniform, next_actions, now_actions]))
            uniform_q, policy_q = sampled[:, :n], sampled[:, n:]
            bounded = values.calibrate(policy_q, bound)
            q = critic.apply(own, batch.observations, batch.actions)
            all_q = jnp.concatenate([uniform_q, bounded], axis=1)
            log_densities = jnp.concatenate([uniform_log, next_log, now_log])
            gap = values.weigh(values.conservative_gap(all_q, log_densities, q), batch.value_weights).mean()
            return gap, {"q_random": uniform_q.mean(), "calibrated": jnp.mean(bounded > policy_q)}

        def critic_loss(own, params):
            next_actions, _ = draw(params, batch.next_observations, target_key)
            next_q = critic.apply(state.target["critic"], batch.next_observations, next_actions)
            scaled = batch._replace(rewards=config.reward_scale * batch.rewards)
            error, td_info = backbone.critic_loss(
                critic, own, scaled, config.aggregate(next_q, target_key).max(axis=0), config.discount
            )
            gap, info = conservative(own, params)
            weight = weight_of(params["multiplier"]) if learned else jnp.asarray(config.alpha, jnp.float32)
            info |= {"td_loss": error, "conservative_gap": gap, "conservative_weight": weight}
            return critic.ensemble * (error + weight * (gap - gap_goal)), info | td_info

        def multiplier_loss(own, params):
            gap, _ = conservative(params["critic"], params)
            return -weight_of(own) * (gap - gap_goal), {}

        losses = {"critic": critic_loss} | ({"multiplier": multiplier_loss} if learned else {})
        losses |= soft_losses(
            actor,
            critic,
            batch.observations,
            actor_key,
            aggregate="min",
            target_entropy=-config.target_entropy_scale * spec.action_dim,
            weight=lambda log_temperature: log_temperature,
        )
        return backbone.descend(state, losses, optimisers, config.target_rate)

    def act(state: State, observations, key, noise=1.0):
        return jnp.tanh(actor.apply(state.params["actor"], observations)[0])

    return Algorithm(
        init, update, act, lambda state: backbone.keep_params(state, "actor"), explore=explore_by_sample(actor)
    )


METHOD = Method(
    name="calql",
    summary="conservative Q-learning, bounded below by the data's returns",
    config=CalQLConfig,
    make=make,
    needs_returns=True,
    online={"sampling": "balanced", "collect": "episode"},
    logs={
        "td_loss": "mean squared TD error, without the conservative term",
        "conservative_gap": "soft maximum of Q over sampled actions, minus Q at the data's",
        "conservative_weight": "the weight of the gap: alpha, times the multiplier if there is one",
        "calibrated": "share of policy actions where the return replaces Q",
        "q_random": "mean of Q at uniformly drawn actions",
        "q_policy": "mean of the lower Q at the policy's actions",
        "entropy": "entropy of the policy, estimated by its log-density at drawn actions",
        "temperature": "alpha_T, the weight of the entropy",
    },
)
