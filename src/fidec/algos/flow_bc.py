"""Flow BC: behaviour cloning with a flow, which can model several ways to act in one state.

    L = E |v(s, t a + (1 - t) z, t) - (a - z)|^2         flow matching on the data's actions
    a = mu(s, z)                                          `flow_steps` Euler steps from the noise z

The policy uses the moving average of the weights over training. It is a policy by itself, and the first stage of
methods that refine a behaviour flow: `--flow RUN` trains them on the frozen flow of such a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from fidec import optim
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.errors import ConfigError
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class FlowBCConfig(options.NetworkConfig):
    """Flow BC's options."""

    flow_steps: int = 10
    """Euler steps from noise to an action."""
    average: float = 0.999
    """Decay of the moving average of the weights; 0 uses the last weights."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "flow_steps")
        if not 0 <= self.average < 1:
            raise ConfigError(f"average must lie in [0, 1), not {self.average}")


def make(config: FlowBCConfig, spec: Spec) -> Algorithm:
    flow = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        params = backbone.init_modules(key, {"flow": (flow.network, "sat")}, spec)
        average = jax.tree.map(jnp.copy, params["flow"])
        return backbone.start(params, adam, constants={"average": average})

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        def flow_loss(own, params):
            return flow.loss(own, batch, key), {}

        after, metrics = backbone.gradient_step(state, {"flow": flow_loss}, adam)
        # A shorter average at the beginning, so that the random initial weights are soon forgotten.
        decay = jnp.minimum(config.average, (1.0 + state.step) / (10.0 + state.step))
        average = optim.polyak(after.params["flow"], state.params["average"], 1.0 - decay)
        after = after._replace(params={**after.params, "average": average})
        return backbone.advance(state, after, 0.0), metrics

    def validate(state: State, batch: Batch, key: PRNGKey) -> Metrics:
        return {"flow_loss": flow.loss(averaged(state), batch, key)}

    def averaged(state: State):
        return state.params.get("average", state.params["flow"])  # a policy has the average as its flow

    def act(state: State, observations, key, noise=1.0):
        noise = noise * backbone.noise_for(key, observations, spec, 1)
        return flow.sample(averaged(state), observations, noise)[0]

    def policy(state: State) -> State:
        return state._replace(params={"flow": averaged(state)}, target=None, optimiser=None)

    return Algorithm(init, update, act, policy, validate=validate)


METHOD = Method(
    name="flow_bc",
    summary="behaviour cloning with a flow",
    config=FlowBCConfig,
    make=make,
    needs_rewards=False,
    offline_only="it imitates its data, so it would imitate its own actions and not improve",
)
