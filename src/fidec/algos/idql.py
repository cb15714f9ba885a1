"""IDQL: IQL's values and a diffusion model of the behaviour; the policy is the best of N of its samples.

    value     E |tau - 1(u < 0)| u^2,   u = min Qbar(s, a) - V(s)
    critic    E (Q_i(s, a) - r - gamma m V(s'))^2, summed over the two critics
    denoiser  E |eps(s, sqrt(abar_k) a + sqrt(1 - abar_k) z, k) - z|^2,   k ~ U{0, ..., T - 1}
    act       argmax over a_1, ..., a_N of min Qbar(s, a_i), drawn in T steps from the moving average of the denoiser

The published lengths, two actor steps for each value step, are those of the repository's older code. So its
denoiser is used here: Mish, 64 Fourier features, no weight decay, V without LayerNorm. All modules take one step on
one batch; the benchmark's batch sizes are not published. The learning rate is constant by default (`decay_steps`),
because the published decay makes sense only in a run of that length. SRPO also uses `DiffusionConfig`,
`DiffusionPolicy`, the value networks and the optimisers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State, with_base
from fidec.algos.iql import ExpectileConfig, value_losses
from fidec.errors import ConfigError
from fidec.ops import diffusion, policies
from fidec.types import Batch, Metrics, Params, PRNGKey, Spec


@dataclass(frozen=True)
class DiffusionConfig(ExpectileConfig):
    """Options of expectile values with a diffusion model of the behaviour."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of critics and value; published: 512 twice on locomotion, 256 twice elsewhere."""
    diffusion_steps: int = 5
    """T: number of noise levels."""
    denoiser_width: int = 256
    """Width of the denoiser; inside a block it is four times that."""
    denoiser_blocks: int = 3
    """Residual blocks of the denoiser."""
    dropout: float = 0.1
    """Dropout in the denoiser's blocks, in training only."""
    ema_rate: float = 0.001
    """Rate of the denoiser's moving average, which is the behaviour model."""
    weight_decay: float = 0.0
    """AdamW's decay of the denoiser's weights; 1e-4 in the repository's newest code."""
    decay_steps: int = 0
    """Steps of a cosine decay of the actor's learning rate; published: 3 million, a whole run; 0: constant."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "diffusion_steps", "denoiser_width", "denoiser_blocks")
        options.not_negative(self, "weight_decay", "decay_steps")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}")
        if not 0 < self.ema_rate <= 1:
            raise ConfigError(f"ema_rate must lie in (0, 1], not {self.ema_rate}")


@dataclass(frozen=True)
class IDQLConfig(DiffusionConfig):
    """IDQL's options."""

    samples: int = 32
    """N: samples of which the critic picks the best."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "samples")


class DiffusionPolicy:
    """A denoiser and its ancestral sampler, conditioned on observations."""

    def __init__(self, config: DiffusionConfig, spec: Spec):
        self.network: Any = nn.Denoiser(
            spec.action_dim, config.denoiser_width, config.denoiser_blocks, dropout=config.dropout
        )
        self.schedule = diffusion.vp_schedule(config.diffusion_steps)

    def predictor(self, params: Params, observations: Any, dropout: PRNGKey | None = None) -> diffusion.Predictor:
        """The noise predictor of these states; with a key it has dropout, as in training."""
        options = {} if dropout is None else {"training": True, "rngs": {"dropout": dropout}}
        return lambda x, k: self.network.apply(params, observations, x, k, **options)

    def loss(self, batch: Batch, key: PRNGKey) -> Any:
        """The denoiser's loss on the data's actions, as `descend` takes it."""
        dropout_key, noise_key = jax.random.split(key)

        def loss(own, params):
            predictor = self.predictor(own, batch.observations, dropout_key)
            return diffusion.loss(self.schedule, predictor, batch.actions, noise_key, batch.action_weights), {}

        return loss

    def sample(
        self, params: Params, observations: Any, key: PRNGKey, spec: Spec, number: int, noise=1.0
    ) -> jax.Array:
        """`number` actions for each observation, along the leading axis. `noise` scales the noise of each step."""
        keys = jax.random.split(key, len(self.schedule.beta))
        draws = jax.vmap(lambda k: backbone.noise_for(k, observations, spec, number))(keys)
        return diffusion.sample(self.schedule, self.predictor(params, observations), noise * draws)


def value_networks(config: DiffusionConfig) -> tuple[Any, Any]:
    """Critic and value with ReLU and without LayerNorm, as in the official repository."""
    shape = {"layer_norm": False, "activation": jax.nn.relu}
    return nn.Critic(config.hidden, ensemble=config.critics, **shape), nn.Value(config.hidden, **shape)


def optimisers(config: DiffusionConfig) -> dict[str, optax.GradientTransformation]:
    """By module; `policy` is for SRPO."""
    rate = config.learning_rate
    actor_rate = optax.cosine_decay_schedule(rate, config.decay_steps) if config.decay_steps else rate
    return {
        "value": optax.adam(rate),
        "critic": optax.adam(rate),
        "denoiser": optax.adamw(actor_rate, weight_decay=config.weight_decay),
        "policy": optax.adam(actor_rate),
    }


def make(config: IDQLConfig, spec: Spec) -> Algorithm:
    options.require_flat(spec, "idql")
    critic, value = value_networks(config)
    behaviour = DiffusionPolicy(config, spec)
    adams, rates = optimisers(config), {"critic": config.target_rate, "denoiser": config.ema_rate}

    def init(key: PRNGKey) -> State:
        networks = {"value": (value, "s"), "critic": (critic, "sa"), "denoiser": (behaviour.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adams, targets=tuple(rates))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        losses = value_losses(config, critic, value, state.target["critic"], batch, key)
        return backbone.descend(state, losses | {"denoiser": behaviour.loss(batch, key)}, adams, rates)

    def act_with_base(state: State, observations, key, candidates: int = config.samples, noise=1.0):
        drawn = behaviour.sample(state.target["denoiser"], observations, key, spec, candidates, noise)
        q = critic.apply(state.target["critic"], observations, drawn).min(axis=0)
        return policies.best_of(drawn, q), drawn[0]  # the first one is a sample of the behaviour

    # Acting needs the targets only.
    return with_base(init, update, act_with_base, lambda state: state._replace(params={}, optimiser=None))


METHOD = Method(
    name="idql",
    summary="expectile values, best of N samples of a diffusion model of the behaviour",
    config=IDQLConfig,
    make=make,
    logs={"v": "mean of V"},
)
