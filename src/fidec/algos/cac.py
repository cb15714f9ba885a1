"""CAC, Consistency-AC: a consistency model as the policy, trained to maximise Q through its two sampling steps.

    critic  sum_i E (Q_i(s, a) - r - gamma m min_j max_k Qbar_j(s', a'_k))^2,   a'_1..a'_10 ~ the averaged actor
    actor   L_cons + eta L_Q
            L_cons = E w (f(s, a + sigma_{n+1} z, sigma_{n+1}) - fbar(s, a + sigma_n z, sigma_n))^2
            L_Q = -E Q_i(s, a_pi) / mean|Q_j(s, a_pi)|,   (i, j) = (1, 2) or (2, 1), equally likely in each step
    act     one of 50 draws, with probabilities softmax(min Qbar(s, a))

f, the noise levels sigma_n and their growing number are those of `fidec.ops.consistency`. fbar has an average of the
actor's parameters, updated every fifth step after the first thousand. It is not published whether the benchmark
transformed rewards for CAC or let its learning rate decay; here neither is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.errors import ConfigError
from fidec.ops import consistency, policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class CACConfig(options.ValueConfig):
    """CAC's options. The defaults are the benchmark's settings on OGBench."""

    q_aggregate: values.Aggregate = "min"
    """How the critics are combined in the TD target: the lowest (min), the mean, or
    the lower of two that are drawn at random (random_pair)."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of every network."""
    policy_learning_rate: float | None = None
    """Learning rate of the actor; None takes `learning_rate`, which is that of the critics."""
    eta: float = 0.3
    """Weight of Q against consistency; from 0.003 to 4.5 over the benchmark's tasks."""
    sample_sigmas: tuple[float, ...] = (80.0, 2.0)
    """Noise levels of the sampling steps, falling."""
    schedule_steps: int = 50_000
    """Updates in which the number of noise levels grows from 2 to 150."""
    schedule_restart: bool = True
    """Restart the schedule after `schedule_steps` updates, as in the published code; otherwise stay at 150."""
    scale_consistency: bool = True
    """Weight the consistency loss by 100 / (sigma_{n+1} - sigma_n)."""
    max_q_backup: bool = True
    """Bootstrap from the best of several next actions, for each critic; otherwise from a single one."""
    backup_samples: int = 10
    """Number of these next actions."""
    q_norm: bool = False
    """Divide the critic's target by its standard deviation in the batch."""
    grad_clip: float | None = 5.0
    """Largest gradient norm of each module; None does not clip."""
    ema_rate: float = 0.005
    """Rate of the averaged actor."""
    ema_interval: int = 5
    """Steps between its updates."""
    ema_start: int = 1000
    """The step of its first update; until then it is the initial actor. Lower it for short runs."""
    samples: int = 50
    """Number of draws. Acting picks one of them by value."""

    def __post_init__(self):
        super().__post_init__()
        if self.critics < 2:
            raise ConfigError(
                f"cac weighs one critic by the magnitude of another: critics must be at least 2, not {self.critics}"
            )
        options.at_least_one(self, "schedule_steps", "backup_samples", "ema_interval", "samples")
        options.not_negative(self, "eta", "ema_start")
        if self.policy_learning_rate is not None:
            options.positive(self, "policy_learning_rate")
        if not 0 < self.ema_rate <= 1:
            raise ConfigError(f"ema_rate must lie in (0, 1], not {self.ema_rate}")
        if not (self.grad_clip is None or self.grad_clip > 0):
            raise ConfigError(f"grad_clip must be positive, or None for no clipping, not {self.grad_clip}")
        low, high = consistency.SIGMA_MIN, consistency.SIGMA_MAX
        falling = all(a > b for a, b in pairwise(self.sample_sigmas))
        if not (falling and self.sample_sigmas and self.sample_sigmas[0] <= high and self.sample_sigmas[-1] > low):
            raise ConfigError(
                f"sample_sigmas must fall from at most {high} and end above {low}, not {self.sample_sigmas}"
            )


def make(config: CACConfig, spec: Spec) -> Algorithm:
    options.require_flat(spec, "cac")
    actor: Any = nn.ConsistencyNetwork(config.hidden, spec.action_dim)
    critic: Any = nn.Critic(config.hidden, layer_norm=False, ensemble=config.critics, activation=jax.nn.mish)
    clip = optax.identity() if config.grad_clip is None else optax.clip_by_global_norm(config.grad_clip)
    rates = {"critic": config.learning_rate, "actor": config.policy_learning_rate or config.learning_rate}
    adams = {module: optax.chain(clip, optax.adam(rate)) for module, rate in rates.items()}

    def function(params, observations):
        """f(s, ., .)."""
        return consistency.consistent(lambda x, sigma: actor.apply(params, observations, x, sigma))

    def draw(params, observations, key, number, noise=1.0):
        """(number, *batch, d) actions. `noise` scales the noise of each step."""
        keys = jax.random.split(key, len(config.sample_sigmas))
        draws = jnp.stack([backbone.noise_for(k, observations, spec, number) for k in keys])
        actions = consistency.sample(function(params, observations), noise * draws, config.sample_sigmas)
        return jnp.clip(actions, -1.0, 1.0)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "actor": (actor, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adams, targets=("critic", "actor"))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        next_key, consistency_key, policy_key, coin_key = jax.random.split(key, 4)
        number = consistency.schedule(state.step, config.schedule_steps, config.schedule_restart)

        def critic_loss(own, params):
            draws = config.backup_samples if config.max_q_backup else 1
            next_actions = draw(state.target["actor"], batch.next_observations, next_key, draws)
            next_q = critic.apply(state.target["critic"], batch.next_observations, next_actions)
            next_v = config.aggregate(next_q.max(axis=1), next_key)  # the maximum over draws, then over critics
            # The sample deviation, as in the published code. One row has none.
            deviation = lambda goal: goal.std() * (len(goal) / max(len(goal) - 1, 1)) ** 0.5  # noqa: E731
            normalise = lambda goal: goal / (deviation(goal) + 1e-6) if config.q_norm else goal  # noqa: E731
            loss, metrics = backbone.critic_loss(critic, own, batch, next_v, config.discount, normalise)
            return critic.ensemble * loss, metrics

        def actor_loss(own, params):
            online = function(own, batch.observations)
            average = function(state.target["actor"], batch.observations)
            consistent = consistency.loss(
                online,
                average,
                batch.actions,
                number,
                consistency_key,
                config.scale_consistency,
                batch.action_weights,
            )
            actions = draw(own, batch.observations, policy_key, 1)[0]
            q = critic.apply(params["critic"], batch.observations, actions)
            first = q[:2]  # of more than two critics, the policy climbs the first two
            q_i, q_j = jnp.where(jax.random.bernoulli(coin_key), first[::-1], first)
            loss = consistent - config.eta * q_i.mean() * values.value_scale(q_j)
            return loss, {"consistency": consistent, "q_policy": q.mean(), "levels": number.astype(jnp.float32)}

        due = (state.step >= config.ema_start) & (state.step % config.ema_interval == 0)
        target_rates = {"critic": config.target_rate, "actor": jnp.where(due, config.ema_rate, 0.0)}
        return backbone.descend(state, {"critic": critic_loss, "actor": actor_loss}, adams, target_rates)

    def choose(state: State, observations, key, candidates: int, noise=1.0):
        draw_key, pick_key = jax.random.split(key)
        actions = draw(state.params["actor"], observations, draw_key, candidates, noise)
        q = critic.apply(state.target["critic"], observations, actions).min(axis=0)
        # The argmax of q plus Gumbel noise is a draw from softmax(q).
        return policies.best_of(actions, q + noise * jax.random.gumbel(pick_key, q.shape))

    def act(state: State, observations, key, noise=1.0):
        return choose(state, observations, key, config.samples, noise)

    def policy(state: State) -> State:
        return backbone.keep_params(state, "actor")._replace(target={"critic": state.target["critic"]})

    return Algorithm(init, update, act, policy, choose=choose)


METHOD = Method(
    name="cac",
    summary="consistency model as the policy; maximises Q through its two sampling steps",
    config=CACConfig,
    make=make,
    logs={
        "consistency": "the consistency loss, the actor's loss without Q",
        "q_policy": "mean of Q at the actor's actions",
        "levels": "the number of noise levels at this step",
    },
)
