"""Measure the KL of a refined policy from its own behaviour flow.

For a state s the flow maps noise to base actions a of density beta(a | s), and the residual map moves them to
a + delta(a). The KL of the moved actions from the base actions is

    KL(s) = E_beta[log beta(a) - log beta(a + delta) - log|det(I + grad delta)|]        (nats)

with log beta from the change of variables along the flow's ODE:

    log beta(x_1) = log N(x_0; 0, I) - int_0^1 div v(x_t, t) dt.

Base actions come from an accurate solution of the same ODE, so their density is the one that is evaluated. The
solver steps of each state are doubled until its KL no longer changes. Where the map folds, or lays one mode of the
behaviour on another, several base actions move to one point, and the formula is a lower bound. Clipping both policies
to the action bounds can only lower the KL.

A policy may draw its base actions with less noise, and choose the best of several moved ones. `fidec.ops.account` has
what both cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fidec import rng
from fidec.ops import flow
from fidec.ops.fisher import scaled_score
from fidec.ops.jacobian import value_and_jacobian
from fidec.parts import Observations, map_parts, rows_of
from fidec.types import PRNGKey

if TYPE_CHECKING:
    from fidec.algos.common.base import Transport

FIRST_STEPS, MOST_STEPS = 16, 512
FRESH_STEPS = 128  # of the actions that only neighbours are looked up among
# A state is settled when doubling its steps changes its KL by less than this share, or by less than so many nats.
RELATIVE, ABSOLUTE = 0.02, 0.005
SCORE_TIME = 0.95
ROWS = 16384  # actions x (1 + action_dim) that are evaluated at once; bounds the memory

Points = Float[Array, "b d"]
TransportOf = Callable[[Any, Any], "Transport"]  # (the policy's state, observations (b, ...)) -> Transport
Report = Callable[[int, str], None]  # (number of settled states, what is computed now)


class Moved(NamedTuple):
    """Base actions and their displacements: n states, k actions each."""

    actions: np.ndarray  # (n, k, d), not clipped
    displacement: np.ndarray  # (n, k, d)
    log_ratio: np.ndarray  # (n, k): its mean over k is the state's KL
    determinant: np.ndarray  # (n, k): det(I + grad delta), positive where the map does not fold
    steps: np.ndarray  # (n,): solver steps
    change: np.ndarray  # (n,): change of the state's KL when the steps were last doubled
    settled: np.ndarray  # (n,): whether that change is within the tolerance


class Measurement(NamedTuple):
    """All arrays of an audit, before they are summarised."""

    moved: Moved
    penalty: np.ndarray  # (n, k): the penalty that training kept below its budget
    score: np.ndarray  # (n, k, d): score of the flow at SCORE_TIME
    drawn: np.ndarray  # (n, k, d): base actions of the policy's own sampler, from the same noise
    fresh: np.ndarray  # (n, k, d): base actions from other noise that is not scaled
    noise: np.ndarray  # (n, k, d): the noise of the actions, with its factor
    value: np.ndarray  # (n, k): what the policy chooses by, of the moved actions; zeros if it does not choose
    budget: float
    unit: str


def integrate(
    velocity: flow.Velocity, x: Points, steps: Array | int, backwards: bool = False
) -> tuple[Points, Array]:
    """Solve the flow's ODE from t = 0 to 1 (or backwards) by RK4; also the integral of div v dt in that direction.

    `steps` may be traced, so one compiled program serves all step sizes.
    """
    start, sign = (1.0, -1.0) if backwards else (0.0, 1.0)
    h = sign / jnp.asarray(steps, x.dtype)

    def rate(y, t):
        v, jacobian = value_and_jacobian(lambda q: velocity(q, flow.times(q, t)), y)
        return v, jnp.trace(jacobian, axis1=-2, axis2=-1)

    def step(i, now):
        def stage(last, coefficients):  # each stage starts from the slope of the previous one
            ahead, weight = coefficients
            v, divergence = rate(now[0] + ahead * h * last[0], start + h * (i + ahead))
            return (v, last[1] + weight * v, last[2] + weight * divergence), None

        zero = jnp.zeros_like(x)
        coefficients = jnp.asarray([(0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)], x.dtype)
        # A scan, not four calls: the velocity and its derivatives are compiled once.
        (_, slope, divergence), _ = jax.lax.scan(stage, (zero, zero, jnp.zeros_like(now[1])), coefficients)
        return now[0] + h / 6.0 * slope, now[1] + h / 6.0 * divergence

    return jax.lax.fori_loop(0, steps, step, (x, jnp.zeros(x.shape[0], x.dtype)))


def log_normal(x: Points) -> Float[Array, " b"]:
    """log N(x; 0, I)."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(x), axis=-1)


def push_forward(transport: Transport, noise: Points, steps: Array | int) -> dict[str, Array]:
    """Base actions, displacement, log density ratio and det(I + grad delta) for each row of noise."""
    actions, integral = integrate(transport.velocity, noise, steps)
    before = log_normal(noise) - integral
    displacement, jacobian = value_and_jacobian(transport.displacement, actions)
    origin, integral = integrate(transport.velocity, actions + displacement, steps, backwards=True)
    after = log_normal(origin) + integral
    sign, log_determinant = jnp.linalg.slogdet(jnp.eye(noise.shape[-1], dtype=noise.dtype) + jacobian)
    return {
        "actions": actions,
        "displacement": displacement,
        "log_ratio": before - after - log_determinant,
        "determinant": sign * jnp.exp(log_determinant),
    }


def measure(
    transport_of: TransportOf,
    state: Any,
    observations: Observations,
    *,
    samples: int,
    action_dim: int,
    key: PRNGKey,
    most_steps: int = MOST_STEPS,
    report: Report | None = None,
    noise_factor: float = 1.0,
) -> Measurement:
    """Measure a policy at these states (n, ...), with `samples` base actions each. The same key, the same numbers.

    Base actions are drawn with this factor of the noise.
    """
    n = rows_of(observations)
    noise_key, penalty_key = rng.at(key, 0), rng.at(key, 1)
    noise = np.float32(noise_factor) * np.asarray(jax.random.normal(noise_key, (n, samples, action_dim)))
    fresh = np.asarray(jax.random.normal(rng.at(key, 2), noise.shape))
    size = max(1, min(n, ROWS // (samples * (action_dim + 1))))
    solve, other = _compiled(transport_of, samples)

    def solve_rows(rows: np.ndarray, steps: int, settled: int) -> dict[str, np.ndarray]:
        def chunk(some, number):
            if report:
                report(settled, f"{steps} solver steps, {min(number * size, len(rows))}/{len(rows)} states")
            return solve(state, _at(observations, some), _flat(noise[some]), steps)

        return _in_chunks(chunk, rows, samples, size)

    moved = _solve_until_settled(solve_rows, n, most_steps)

    def other_rows(some, number):
        arrays = _flat(noise[some]), _flat(fresh[some]), _flat(moved.actions[some])
        return other(state, _at(observations, some), *arrays, rng.at(penalty_key, number))

    others = _in_chunks(other_rows, np.arange(n), samples, size)
    single = transport_of(state, jax.tree.map(jnp.asarray, _at(observations, slice(1))))
    if report:
        report(n, "done")
    return Measurement(moved, **others, noise=noise, budget=float(single.budget), unit=single.unit)


def _solve_until_settled(solve: Callable[[np.ndarray, int, int], dict[str, np.ndarray]], n: int, most: int) -> Moved:
    """Double each state's solver steps until its KL changes by less than the tolerance."""
    rows, steps = np.arange(n), FIRST_STEPS
    result = solve(rows, steps, 0)
    taken, change = np.full(n, steps), np.full(n, np.nan)
    settled = np.zeros(n, bool)
    while len(rows) and 2 * steps <= most:
        steps *= 2
        finer = solve(rows, steps, n - len(rows))
        now, before = (
            ratio.mean(axis=1, dtype=np.float64) for ratio in (finer["log_ratio"], result["log_ratio"][rows])
        )
        for name, values in finer.items():
            result[name][rows] = values
        taken[rows], change[rows] = steps, now - before
        settled[rows] = np.abs(now - before) <= np.maximum(ABSOLUTE, RELATIVE * np.abs(now))  # False for NaN
        rows = np.flatnonzero(~settled)
    return Moved(**result, steps=taken, change=change, settled=settled)


@lru_cache(maxsize=8)  # repeated audits of one policy compile once
def _compiled(transport_of: TransportOf, samples: int) -> tuple[Callable[..., dict[str, Array]], ...]:
    def transport_at(state, observations):
        return transport_of(state, jax.tree.map(lambda part: jnp.repeat(part, samples, axis=0), observations))

    def solve(state, observations, noise, steps):
        return push_forward(transport_at(state, observations), noise, steps)

    def other(state, observations, noise, fresh, actions, key):
        transport = transport_at(state, observations)
        score = scaled_score(transport.velocity, SCORE_TIME)
        value = transport.value or (lambda actions: jnp.zeros(len(actions)))
        return {
            "fresh": flow.sample(transport.velocity, fresh, FRESH_STEPS, "heun"),  # not clipped, as the others
            "value": value(jnp.clip(actions + transport.displacement(actions), -1.0, 1.0)),
            "penalty": transport.penalty(actions, key),
            "score": score(actions, key)[0],
            "drawn": transport.base(noise),
        }

    return jax.jit(solve), jax.jit(other)


def _at(observations: Observations, rows: Any) -> Observations:
    return map_parts(lambda array: array[rows], observations)


def _flat(array: np.ndarray) -> np.ndarray:
    """(n, k, d) -> (n k, d)."""
    return array.reshape(-1, array.shape[-1])


def _in_chunks(
    function: Callable[[np.ndarray, int], dict[str, Array]], rows: np.ndarray, samples: int, size: int
) -> dict[str, np.ndarray]:
    """Apply to `size` rows at a time and stack the results as (n, k, ...).

    The last chunk is filled with copies of its first row, so all chunks have one shape and compile once.
    """
    parts = []
    for number, first in enumerate(range(0, len(rows), size)):
        chunk = rows[first : first + size]
        padded = np.concatenate([chunk, np.full(size - len(chunk), chunk[0])])
        result = function(padded, number)
        parts.append({k: np.asarray(v).reshape(size, samples, *v.shape[1:])[: len(chunk)] for k, v in result.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
