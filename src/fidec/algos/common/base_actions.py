"""The base actions of an update, which a residual map moves or a student imitates.

    solved    the flow is solved now, at the batch's observations, at the next ones, or at both by one solve
    stored    one of several proposals of a frozen policy for the next state, drawn once before training

`base_actions` takes the stored ones if the batch has proposals. So a method writes one `update` for both. Proposals
may come from any policy: only its actions are read, and what was stored with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fidec.algos.common.backbone import FlowPolicy
from fidec.parts import Observations, rows_of
from fidec.types import Batch, Params, PRNGKey

States = Literal["observations", "next_observations"]
BOTH: tuple[States, ...] = ("observations", "next_observations")
Further = Callable[[Any, jax.Array, jax.Array], dict[str, jax.Array]]
OfStates = Callable[[jax.Array], dict[str, jax.Array]]


class BaseActions(NamedTuple):
    """The base actions of a batch, without gradients."""

    observations: Any
    """The states at which the method learns to move them."""
    actions: jax.Array
    """Base actions at these states."""
    data: jax.Array
    """The data's actions at these states."""
    next_actions: jax.Array
    """Base actions at the next states, one each or several, (count, rows, d). If the flow was solved at the
    observations alone, those of `actions`."""
    kept: dict[str, jax.Array]
    """What belongs to each of `actions`: their noise, or what was stored with them."""


def base_actions(
    flow: FlowPolicy,
    params: Params,
    batch: Batch,
    keys: tuple[PRNGKey, PRNGKey],
    at: tuple[States, ...] = BOTH,
    next_count: int = 1,
) -> BaseActions:
    """Solved base actions by the first key, or stored ones by the second, `next_count` of them at each next state."""
    return solved(flow, params, batch, keys[0], at) if batch.proposals is None else stored(batch, keys[1], next_count)


def solved(flow: FlowPolicy, params: Params, batch: Batch, key: PRNGKey, at: tuple[States, ...]) -> BaseActions:
    """Samples of the flow at the states `at`, by one solve: twice the rows cost less than two solves."""
    rows, d = batch.actions.shape
    features = [flow.encode(params, getattr(batch, name)) for name in at]
    features = features[0] if len(at) == 1 else jnp.concatenate(features)
    noise = jax.random.normal(key, (len(at) * rows, d))
    actions = jax.lax.stop_gradient(flow.sample(params, features, noise, encoded=True))
    data = batch.actions if at[0] == "observations" else batch.next_actions
    return BaseActions(getattr(batch, at[0]), actions[:rows], data, actions[-rows:], {"noise": noise[:rows]})


def stored(batch: Batch, key: PRNGKey, next_count: int = 1) -> BaseActions:
    """One of the proposals at each next state, drawn at random; the method learns at these states too."""
    proposals, (rows, count) = batch.proposals["actions"], batch.proposals["actions"].shape[:2]
    kept = pick(batch.proposals, key)
    actions = kept.pop("actions")
    following = actions
    if next_count > 1:  # the one that was picked, and those after it
        several = (jax.random.randint(key, (rows,), 0, count) + jnp.arange(next_count)[:, None]) % count
        following = proposals[jnp.arange(rows), several]
    return BaseActions(batch.next_observations, actions, batch.next_actions, following, kept)


def propose(
    flow: FlowPolicy,
    params: Params,
    observations: Observations,
    key: PRNGKey,
    count: int,
    further: Further = lambda observations, noise, actions: {},
    of_states: OfStates = lambda actions: {},
) -> dict[str, Any]:
    """Proposals of a flow, `count` for each observation: {"actions": (observations, count, d)}.

    `further(observations, noise, actions)` gives other arrays to store, with a row for each action. `of_states` gives
    arrays with a row for each observation, from its samples; they are stored as "states".
    """
    observations = jax.tree.map(lambda part: jnp.repeat(part, count, axis=0), observations)
    noise = jax.random.normal(key, (rows_of(observations), flow.action_dim))
    actions = flow.sample(params, observations, noise)
    proposals = {"actions": actions, **further(observations, noise, actions)}
    proposals = jax.tree.map(lambda rows: rows.reshape(-1, count, *rows.shape[1:]), proposals)
    states = of_states(proposals["actions"])
    return {**proposals, "states": states} if states else proposals


def nothing(state: Any, observations: Observations, key: PRNGKey) -> dict[str, Any]:
    """The proposals of a method whose update needs the frozen flow and no actions of it."""
    return {}


def pick(proposals: dict[str, Any], key: PRNGKey) -> dict[str, Any]:
    """One proposal of each row at random, with the same index in every array. Arrays of states stay as they are."""
    rows, count = proposals["actions"].shape[:2]
    chosen = jax.random.randint(key, (rows,), 0, count)
    picked = {name: each[jnp.arange(rows), chosen] for name, each in proposals.items() if name != "states"}
    return {**picked, **proposals.get("states", {})}
