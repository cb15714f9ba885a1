"""Fitted Q evaluation: the value of frozen policies, from logged data alone.

For a policy pi a critic learns Q(s, a) = E[r + gamma m Q(s', a')], a' from pi(s'), on the rows of the data. The value
at the start of episodes is the mean of Q(s, a), a from pi(s), over their first states.

The policies do not change, so some of their actions at the next states are drawn before training, and an update takes
one of them. The critic has several heads. Each is trained on its own bootstrap of the episodes, with its own targets,
and its value is a mean over the first states of that bootstrap. The spread of the heads is then the standard error of
the estimate, as far as it comes from the chance of the data and of the initial weights. It does not contain the error
of Q at actions that the data does not have, which can be much larger.

All policies have the same batches, bootstraps and initial weights, so that what they share cancels in a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fidec import nn, rng
from fidec.algos import Algorithm
from fidec.algos.common import backbone
from fidec.algos.common.base import prepare
from fidec.console import Progress
from fidec.data import OfflineDataset
from fidec.data.feed import Data, map_rows
from fidec.data.sampling import Sampling, host_source
from fidec.data.windows import Window
from fidec.errors import NonFiniteError
from fidec.ops import values
from fidec.parts import Observations
from fidec.train import loop
from fidec.types import Batch, PRNGKey, Spec

HEADS = 5
ACTIONS = 4  # of a policy, drawn for each next state and for each first state
ROWS = 1024  # states whose actions are drawn at once
DISPATCH = 64  # updates of one call, at most: the progress bar and Ctrl-C wait for its end
SETTLED = 5.0  # time constants of the mean value that an estimate should take
TARGET_RATES = (0.005, 0.1)


class Draw(Protocol):
    def __call__(self, state: Any, observations: Any, key: PRNGKey) -> dict[str, Any]:
        """One action for each observation, by the name of the policy."""
        ...


class Fitted(NamedTuple):
    """Values of the policies at the start of episodes, and how they were obtained."""

    heads: dict[str, np.ndarray]  # for each policy (heads,), in the unit of rewards
    target_rate: float
    time_constant: float


def fit(
    draw: Draw,
    state: Any,
    dataset: OfflineDataset,
    spec: Spec,
    *,
    discount: float,
    updates: int,
    hidden: Sequence[int] = (256, 256),
    learning_rate: float = 3e-4,
    batch_size: int = 256,
    seed: int = 0,
    quiet: bool = False,
) -> Fitted:
    """Evaluate the policies of `draw`. `spec` is theirs: it has the observations and, for chunks, their length.

    A chunk is one action: its rewards are summed, and the next state is the one after it.
    """
    window = Window(spec.chunk, spec.chunk, discount)
    sampling = Sampling.of(spec, spec.frame_stack, 0.0, 0.5, history=spec.history, window=window)
    source = host_source(dataset, sampling)
    drawn = jax.jit(partial(_draw_several, draw))

    def at_next(batch: Batch, first: int) -> Any:
        return drawn(state, batch.next_observations, rng.at(rng.stream(seed, "propose"), first))

    with Progress(dataset.size, name="drawing actions", unit="row", enabled=not quiet) as progress:
        everywhere = np.arange(dataset.size)
        proposals = map_rows(at_next, source, everywhere, sampling, size=ROWS, report=progress.update)
    weights = bootstrap(len(dataset.episodes), seed)
    lengths = dataset.episodes[:, 1] - dataset.episodes[:, 0]
    column = {"actions": proposals, "weights": np.repeat(weights, lengths, axis=0)}

    critic: Any = nn.Critic(hidden, ensemble=HEADS, encoder=backbone.encoder(spec.joined))
    returns = dataset.returns(discount)
    centre, scale = float(returns.mean()), float(returns.std()) or 1.0
    rate = target_rate_for(updates, discount**spec.chunk)
    evaluation = _evaluation(draw, tuple(proposals), critic, spec, discount, centre, scale, learning_rate, rate)
    target = _train(evaluation, dataset, spec, sampling, column, updates, batch_size, seed, quiet)

    @jax.jit
    def at_first(state, target, observations, key):
        actions = _draw_several(draw, state, observations, key)
        observed = prepare(spec, observations)
        return {name: _value(critic, target[name], observed, each).T for name, each in actions.items()}

    def first_values(batch: Batch, first: int) -> Any:
        return at_first(state, target, batch.observations, rng.at(rng.stream(seed, "evaluate"), first))

    starts = map_rows(first_values, source, dataset.episodes[:, 0], sampling, size=ROWS)  # (episodes, heads)
    heads = {name: centre + scale * np.average(q.astype(np.float64), 0, weights) for name, q in starts.items()}
    if not all(np.isfinite(each).all() for each in heads.values()):
        raise NonFiniteError("fitted Q evaluation diverged: its values are not finite. Lower --discount.")
    return Fitted(heads, rate, time_constant(rate, discount**spec.chunk))


def bootstrap(episodes: int, seed: int) -> np.ndarray:
    """(episodes, heads): how often each head draws each episode."""
    counts = np.random.default_rng([seed, 2]).multinomial(episodes, np.full(episodes, 1.0 / episodes), HEADS)
    return counts.T.astype(np.float32)


def time_constant(target_rate: float, discount: float) -> float:
    """Updates in which the error of the mean value falls to 1/e, as in training (`fidec.train.value_scale`)."""
    return 1.0 / (target_rate * (1.0 - discount))


def target_rate_for(updates: int, discount: float) -> float:
    """The rate at which so many updates are `SETTLED` time constants, within `TARGET_RATES`."""
    return float(np.clip(SETTLED * time_constant(1.0, discount) / updates, *TARGET_RATES))


def _draw_several(draw: Draw, state: Any, observations: Any, key: PRNGKey) -> dict[str, jax.Array]:
    """(rows, ACTIONS, d) by the name of the policy. With vmap over keys, images are encoded once."""
    keys = jax.vmap(partial(rng.at, key))(jnp.arange(ACTIONS))
    return jax.vmap(draw, in_axes=(None, None, 0), out_axes=1)(state, observations, keys)


def _value(critic: Any, params: Any, observations: Observations, actions: jax.Array) -> jax.Array:
    """(heads, rows): the mean of Q over the actions (rows, ACTIONS, d) of each row."""
    return critic.apply(params, observations, jnp.moveaxis(actions, 1, 0)).mean(axis=1)


def _evaluation(
    draw: Draw,
    names: Sequence[str],
    critic: Any,
    spec: Spec,
    discount: float,
    centre: float,
    scale: float,
    learning_rate: float,
    target_rate: float,
) -> Algorithm:
    """The critics of all policies as one method. Its networks learn (Q - centre) / scale, so they start at `centre`.

    The centre is the data's mean return. A Q that starts at zero would take the time constant to get there.
    """
    optimiser = optax.adam(learning_rate)

    def init(key: PRNGKey) -> Any:
        params = backbone.init_modules(key, {"critic": (critic, "sa")}, spec.joined)["critic"]
        return backbone.start(dict.fromkeys(names, params), optimiser, targets=names)

    def update(state: Any, batch: Batch, key: PRNGKey) -> Any:
        seen, following = prepare(spec, batch.observations), prepare(spec, batch.next_observations)
        weights = values.weigh(batch.proposals["weights"].T, batch.value_weights)
        # One of the actions in each update has the same expectation as their mean, in less than half of the time.
        chosen = jax.random.randint(key, (len(weights.T), 1, 1), 0, ACTIONS)

        def loss_of(name: str):
            next_actions = jnp.take_along_axis(batch.proposals["actions"][name], chosen, axis=1)[:, 0]
            next_q = centre + scale * critic.apply(state.target[name], following, next_actions)
            goal = (values.td_target(batch.rewards, batch.masks, next_q, discount) - centre) / scale
            return lambda own, _: (values.td_loss(critic.apply(own, seen, batch.actions), goal, weights), {})

        return backbone.descend(state, {name: loss_of(name) for name in names}, optimiser, target_rate)

    return Algorithm(init, update, act=draw, policy=lambda state: state)


def _train(
    evaluation: Algorithm,
    dataset: OfflineDataset,
    spec: Spec,
    sampling: Sampling,
    column: Any,
    updates: int,
    batch_size: int,
    seed: int,
    quiet: bool,
) -> Any:
    """The target networks after all updates: averages over the last ones, less noisy than the networks."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(column))
    feed = Data.of([dataset], sampling, beside=size).feed(seed, batch_size, sampling, [column])
    looped = not loop.step_by_step(spec)
    steps = loop.make_steps(evaluation, sampling, looped=looped)
    steps = steps if looped else loop.one_by_one(steps)
    carry, step = loop.start(evaluation, seed, loop.example_batch(feed.example, sampling)), 0
    try:
        with Progress(updates, name="fitted Q evaluation", unit="update", enabled=not quiet) as progress:
            while step < updates:
                chunk, stop = feed.at(step)
                last = min(stop, step + DISPATCH, updates)
                carry = steps(loop.keys_of(seed), carry, chunk, np.int32(step), np.int32(last))
                progress.update(step := last, loss=float(carry.sums["loss"]) / last)  # waits for the updates
    finally:
        feed.close()
    return carry.state.target
