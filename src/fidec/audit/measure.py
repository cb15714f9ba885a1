"""How far a refined policy has really moved from its own behaviour flow: measured, not believed.

For a state s the flow carries noise z to base actions a of density beta(a | s), and the residual map moves them to
a + delta(a). The divergence of what comes out from what went in is

    KL(s) = E_beta[log beta(a) - log beta(a + delta) - log|det(I + grad delta)|]        (nats)

with log beta by the instantaneous change of variables along the flow's ODE:

    log beta(x_1) = log N(x_0; 0, I) - int_0^1 div v(x_t, t) dt.

Base actions come from an accurate solve of the same ODE, so that their density is the one that is evaluated. Each
state's solver is refined until halving its step no longer matters. Where the map folds, several base actions go to
one place, and the formula is a lower bound. Clipping both policies to the box afterwards can only lower it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fidec import rng
from fidec.ops import flow
from fidec.ops.fisher import ScoreEstimator
from fidec.ops.jacobian import value_and_jacobian
from fidec.types import PRNGKey

if TYPE_CHECKING:
    from fidec.algos.common.base import Transport

FIRST_STEPS, MOST_STEPS = 16, 512
RELATIVE, ABSOLUTE = 0.02, 0.005  # a state is settled when halving its step changes its KL by less (share, nats)
SCORE_TIME = 0.95
ROWS = 16384  # of actions times (1 + derivatives), evaluated at once: bounds the memory

Points = Float[Array, "b d"]
TransportOf = Callable[[Any, Any], "Transport"]  # (the policy's state, observations (b, ...)) -> Transport
Report = Callable[[int, str], None]  # (states that are settled, what is being done)


class Moved(NamedTuple):
    """Base actions and what became of them; n states, k actions each."""

    actions: np.ndarray  # (n, k, d), neither clipped
    displacement: np.ndarray  # (n, k, d)
    log_ratio: np.ndarray  # (n, k): its mean over k is the state's KL
    determinant: np.ndarray  # (n, k): det(I + grad delta), positive where the map does not fold
    steps: np.ndarray  # (n,) of the solver
    change: np.ndarray  # (n,): what the last halving of the step changed in the state's KL
    settled: np.ndarray  # (n,): whether that is within the tolerance


class Audit(NamedTuple):
    """All that is measured of a policy, before it is summed up."""

    moved: Moved
    penalty: np.ndarray  # (n, k): what training held below its budget
    score: np.ndarray  # (n, k, d): of the flow, read at SCORE_TIME
    drawn: np.ndarray  # (n, k, d): base actions from the same noise as the policy draws them
    budget: float
    unit: str


def carry(velocity: flow.Velocity, x: Points, steps: Array | int, backwards: bool = False) -> tuple[Points, Array]:
    """Follow the flow from t = 0 to 1, or back, by RK4; also the integral of div v dt in that direction.

    `steps` may be traced, so that one compilation serves all step sizes.
    """
    start, sign = (1.0, -1.0) if backwards else (0.0, 1.0)
    h = sign / jnp.asarray(steps, x.dtype)

    def rate(y, t):
        v, jacobian = value_and_jacobian(lambda q: velocity(q, flow.times(q, t)), y)
        return v, jnp.trace(jacobian, axis1=-2, axis2=-1)

    def step(i, now):
        def stage(last, coefficients):  # each starts from the slope of the one before it
            ahead, weight = coefficients
            v, divergence = rate(now[0] + ahead * h * last[0], start + h * (i + ahead))
            return (v, last[1] + weight * v, last[2] + weight * divergence), None

        zero = jnp.zeros_like(x)
        coefficients = jnp.asarray([(0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)], x.dtype)
        # A loop, not four calls: the velocity and its derivatives are compiled once.
        (_, slope, divergence), _ = jax.lax.scan(stage, (zero, zero, jnp.zeros_like(now[1])), coefficients)
        return now[0] + h / 6.0 * slope, now[1] + h / 6.0 * divergence

    return jax.lax.fori_loop(0, steps, step, (x, jnp.zeros(x.shape[0], x.dtype)))


def log_normal(x: Points) -> Float[Array, " b"]:
    """log N(x; 0, I)."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(x), axis=-1)


def push(transport: Transport, noise: Points, steps: Array | int) -> dict[str, Array]:
    """Base actions, their displacement, the log density ratio and det(I + grad delta), for each row of noise."""
    actions, integral = carry(transport.velocity, noise, steps)
    before = log_normal(noise) - integral
    displacement, jacobian = value_and_jacobian(transport.displacement, actions)
    origin, integral = carry(transport.velocity, actions + displacement, steps, backwards=True)
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
    observations: np.ndarray,
    *,
    samples: int,
    action_dim: int,
    key: PRNGKey,
    most_steps: int = MOST_STEPS,
    report: Report | None = None,
) -> Audit:
    """Audit a policy at these states (n, ...), with `samples` base actions each. The same key, the same numbers."""
    noise_key, penalty_key = rng.at(key, 0), rng.at(key, 1)
    noise = np.asarray(jax.random.normal(noise_key, (len(observations), samples, action_dim)))
    size = max(1, min(len(observations), ROWS // (samples * (action_dim + 1))))
    chunks = partial(_in_chunks, size=size)

    solve, look = _compiled(transport_of, samples)

    def solve_rows(rows: np.ndarray, steps: int, settled: int) -> dict[str, np.ndarray]:
        def one(chunk, number):
            if report:
                report(settled, f"{steps} solver steps, {min(number * size, len(rows))}/{len(rows)} states")
            return solve(state, observations[chunk], _flat(noise[chunk]), steps)

        return chunks(one, rows, samples)

    moved = _settle(solve_rows, len(observations), most_steps)

    def look_rows(chunk, number):
        return look(
            state,
            observations[chunk],
            _flat(noise[chunk]),
            _flat(moved.actions[chunk]),
            rng.at(penalty_key, number),
        )

    found = chunks(look_rows, np.arange(len(observations)), samples)
    single = transport_of(state, jnp.asarray(observations[:1]))
    if report:
        report(len(observations), "done")
    return Audit(moved, found["penalty"], found["score"], found["drawn"], float(single.budget), single.unit)


def _settle(solve: Callable[[np.ndarray, int, int], dict[str, np.ndarray]], n: int, most: int) -> Moved:
    """Double each state's steps until halving the step changed its KL by less than the tolerance."""
    rows, steps = np.arange(n), FIRST_STEPS
    found = solve(rows, steps, 0)
    taken, change = np.full(n, steps), np.full(n, np.nan)
    settled = np.zeros(n, bool)
    while len(rows) and 2 * steps <= most:
        steps *= 2
        finer = solve(rows, steps, n - len(rows))
        now, before = (part.mean(axis=1, dtype=np.float64) for part in (finer["log_ratio"], found["log_ratio"][rows]))
        for name, values in finer.items():
            found[name][rows] = values
        taken[rows], change[rows] = steps, now - before
        settled[rows] = np.abs(now - before) <= np.maximum(ABSOLUTE, RELATIVE * np.abs(now))  # False for nan
        rows = np.flatnonzero(~settled)
    return Moved(**found, steps=taken, change=change, settled=settled)


@lru_cache(maxsize=8)  # one compilation serves all audits of a policy
def _compiled(transport_of: TransportOf, samples: int) -> tuple[Callable[..., dict[str, Array]], ...]:
    def transport_at(state, observations):
        return transport_of(state, jnp.repeat(observations, samples, axis=0))

    def solve(state, observations, noise, steps):
        return push(transport_at(state, observations), noise, steps)

    def look(state, observations, noise, actions, key):
        transport = transport_at(state, observations)
        score = ScoreEstimator(transport.velocity, SCORE_TIME)
        return {
            "penalty": transport.penalty(actions, key),
            "score": score(actions, key)[0],
            "drawn": transport.base(noise),
        }

    return jax.jit(solve), jax.jit(look)


def _flat(array: np.ndarray) -> np.ndarray:
    """(n, k, d) -> (n k, d)."""
    return array.reshape(-1, array.shape[-1])


def _in_chunks(
    function: Callable[[np.ndarray, int], dict[str, Array]], rows: np.ndarray, samples: int, size: int
) -> dict[str, np.ndarray]:
    """Apply to `size` rows at a time and stack the results as (n, k, ...).

    The last chunk is filled up with its first row, so that all have one shape and compile once.
    """
    parts = []
    for number, first in enumerate(range(0, len(rows), size)):
        chunk = rows[first : first + size]
        padded = np.concatenate([chunk, np.full(size - len(chunk), chunk[0])])
        result = function(padded, number)
        parts.append({k: np.asarray(v).reshape(size, samples, *v.shape[1:])[: len(chunk)] for k, v in result.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
