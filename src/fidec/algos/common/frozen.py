"""Proposals of a frozen behaviour flow: several actions for each state, drawn once and stored beside the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fidec.algos.common.backbone import FlowPolicy
from fidec.parts import rows_of
from fidec.types import Params, PRNGKey

Further = Callable[[jax.Array, jax.Array, jax.Array], dict[str, jax.Array]]
OfStates = Callable[[jax.Array], dict[str, jax.Array]]


def propose(
    flow: FlowPolicy,
    params: Params,
    observations: jax.Array,
    key: PRNGKey,
    count: int,
    further: Further = lambda observations, noise, actions: {},
    of_states: OfStates = lambda actions: {},
) -> dict[str, Any]:
    """`count` flow samples for each observation: {"actions": (observations, count, d)}.

    `further(observations, noise, actions)` gives other arrays to store, with a row for each action. `of_states` gives
    arrays with a row for each observation, from its samples; they are stored as "states".
    """
    observations = jax.tree.map(lambda part: jnp.repeat(part, count, axis=0), observations)
    noise = jax.random.normal(key, (rows_of(observations), flow.action_dim))
    actions = flow.sample(params, observations, noise)
    found = {"actions": actions, **further(observations, noise, actions)}
    found = jax.tree.map(lambda rows: rows.reshape(-1, count, *rows.shape[1:]), found)
    states = of_states(found["actions"])
    return {**found, "states": states} if states else found


def pick(proposals: dict[str, Any], key: PRNGKey) -> dict[str, Any]:
    """One of the proposals of each row, drawn at random; the same one from all arrays. And what is of the state."""
    rows, count = proposals["actions"].shape[:2]
    chosen = jax.random.randint(key, (rows,), 0, count)
    picked = {name: each[jnp.arange(rows), chosen] for name, each in proposals.items() if name != "states"}
    return {**picked, **proposals.get("states", {})}
