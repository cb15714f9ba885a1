"""The laboratory: on a landscape, fit a flow, train maps under a constraint, and measure them exactly.

There is one state and two action dimensions; density and value are known. The flow is fitted as FiDec fits it. The
maps are trained with FiDec's own constraints and multiplier, but with the known value instead of a critic. Only the
constraints differ. Seeds and budgets are axes of one array program. Methods are compared by their frontier: the best
value within a given true KL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fidec import nn
from fidec.algos.constraints import Constraint, Model, Move
from fidec.algos.constraints.renoised import Renoised
from fidec.algos.fidec_closed_form import walk
from fidec.geometry.landscapes import Landscape
from fidec.ops import account, fisher, flow, jacobian, values
from fidec.types import Params, PRNGKey

MEASURE_KEY = 2**31 - 1  # all maps are measured at the same samples
FLOOR = 1e-4  # nats; a smaller measured KL is noise and may be negative
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of networks and samples. With the defaults, one landscape takes minutes on two cores."""

    flow_hidden: tuple[int, ...] = (64, 64, 64)
    flow_steps: int = 6000
    map_hidden: tuple[int, ...] = (64, 64)
    map_steps: int = 1000
    batch: int = 128
    pool: int = 8192  # stored base samples of each flow
    measured: int = 4096  # exact samples at which a map is measured


class Flows(NamedTuple):
    """Fitted flows, with a leading axis of seeds."""

    params: Params
    noise: jax.Array  # (seeds, pool, 2)
    base: jax.Array  # (seeds, pool, 2): ten Euler steps from that noise
    t_eps: jax.Array  # (seeds,): the calibrated time
    losses: jax.Array  # (seeds, n): the calibration's loss at 1 - fisher.DISTANCES


class Maps(NamedTuple):
    """Trained maps, with leading axes (seeds, budgets)."""

    params: Params
    multiplier: jax.Array
    penalty: jax.Array  # a running mean of the penalty over the last steps


class Truth(NamedTuple):
    """A refined policy, measured with the known density."""

    actions: jax.Array
    value: jax.Array
    kl: jax.Array  # a lower bound where the map folds
    off: jax.Array  # share of samples off the support
    modes: jax.Array  # share of samples in each mode
    displacement: jax.Array
    folded: jax.Array  # share of samples at which the map folds, det <= 0


# --- the flow ------------------------------------------------------------------------------------------------


def velocity_of(sizes: Sizes, params: Params) -> flow.Velocity:
    """The fitted velocity field."""
    network: Any = nn.MLP(sizes.flow_hidden, 2)
    return lambda x, t: network.apply(params, jnp.concatenate([x, jnp.broadcast_to(t, (*x.shape[:-1], 1))], axis=-1))


def fit(landscape: Landscape, seeds: int, sizes: Sizes) -> Flows:
    """Fit a flow for each seed by flow matching on exact samples; with its base samples and its calibrated time."""
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.flow_steps))

    def loss(params, key):
        data_key, key = jax.random.split(key)
        return flow.matching_loss(velocity_of(sizes, params), landscape.sample(data_key, 2 * sizes.batch), key)

    @jax.vmap
    def step(state, key):
        params, optimiser = state
        updates, optimiser = adam.update(jax.grad(loss)(params, key), optimiser)
        return optax.apply_updates(params, updates), optimiser

    roots, params = _init_flows(seeds, sizes)
    keys = jax.vmap(lambda root: jax.random.split(jax.random.fold_in(root, 1), sizes.flow_steps), out_axes=1)(roots)
    params, _ = _repeat(step, (params, jax.vmap(adam.init)(params)), keys)
    return jax.jit(partial(_sample_and_calibrate, landscape, sizes))(params, roots)


def fit_template(landscape: Landscape, seeds: int, sizes: Sizes) -> Flows:
    """Arrays of the shapes that `fit` returns, to read stored flows."""
    roots, params = _init_flows(seeds, sizes)
    return _sample_and_calibrate(landscape, sizes, params, roots)


def _init_flows(seeds: int, sizes: Sizes) -> tuple[jax.Array, Params]:
    roots = jax.vmap(jax.random.key)(jnp.arange(seeds))
    return roots, jax.vmap(lambda key: nn.MLP(sizes.flow_hidden, 2).init(key, jnp.zeros((1, 3))))(roots)


def _sample_and_calibrate(landscape: Landscape, sizes: Sizes, params: Params, roots: jax.Array) -> Flows:
    def one(params, root):
        velocity = velocity_of(sizes, params)
        noise = jax.random.normal(jax.random.fold_in(root, 2), (sizes.pool, 2))
        data = landscape.sample(jax.random.fold_in(root, 3), sizes.pool)
        t_eps, losses = fisher.choose_time(velocity, data, root)
        return noise, flow.sample(velocity, noise), t_eps, losses

    return Flows(params, *jax.vmap(one)(params, roots))


def _repeat(step: Callable, state: Any, keys: jax.Array) -> Any:
    """Apply state = step(state, key) for all keys, in one compiled program."""
    return jax.jit(lambda state, keys: jax.lax.scan(lambda s, k: (step(s, k), None), state, keys)[0])(state, keys)


# --- training ------------------------------------------------------------------------------------------------


def _sweep(start: Callable, update: Callable, flows: Flows, budgets: tuple[float, ...], fold: int, steps: int) -> Any:
    """Train state = update(flow, budget, state, key) for every seed and budget; `start(key)` is the first state.

    The budgets of a seed share its flow, its start and its keys.
    """
    roots = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), fold))(jnp.arange(len(flows.t_eps)))
    keys = jax.vmap(lambda root: jax.random.split(root, steps), out_axes=1)(roots)
    state = jax.vmap(lambda root: jax.tree.map(lambda leaf: jnp.stack([leaf] * len(budgets)), start(root)))(roots)
    over_budgets = jax.vmap(update, in_axes=(None, 0, 0, None))
    over_seeds = jax.vmap(over_budgets, in_axes=(0, None, 0, 0))
    return _repeat(lambda state, key: over_seeds(flows, jnp.asarray(budgets), state, key), state, keys)


def train_maps(
    landscape: Landscape, flows: Flows, constraint: Constraint, budgets: tuple[float, ...], sizes: Sizes
) -> Maps:
    """Train maps by FiDec's residual step and multiplier, with the known value."""
    network: Any = _map_network(sizes)
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.map_steps, alpha=0.05))
    ascent = optax.adam(optax.cosine_decay_schedule(0.05, sizes.map_steps, alpha=0.05))

    def start(key):
        params, log_multiplier = network.init(key, jnp.zeros((1, 2))), jnp.zeros(())
        return params, log_multiplier, (adam.init(params), ascent.init(log_multiplier)), jnp.zeros(())

    def update(own, budget, state, key):
        params, log_multiplier, optimisers, mean_cost = state
        pick_key, penalty_key, data_key = jax.random.split(key, 3)
        base = own.base[jax.random.randint(pick_key, (sizes.batch,), 0, sizes.pool)]
        model = Model(
            velocity_of(sizes, own.params),
            # Noise selects one of the stored samples uniformly: no further solve is needed.
            lambda noise: own.base[(jax.scipy.stats.norm.cdf(noise[..., 0]) * sizes.pool).astype(int)],
            anchors=landscape.sample(data_key, sizes.batch),
            t_eps=own.t_eps,
        )

        def loss(params):
            field = partial(network.apply, params)
            displacement = field(base)
            cost = constraint.penalty(Move(field, base, displacement), model, penalty_key).mean()
            value = landscape.value(base + displacement)
            return jnp.exp(log_multiplier) * cost - values.value_scale(value) * value.mean(), cost

        grads, cost = jax.grad(loss, has_aux=True)(params)
        updates, first = adam.update(grads, optimisers[0])
        change, second = ascent.update(-(cost - budget), optimisers[1])
        mean_cost = 0.99 * mean_cost + 0.01 * cost
        return optax.apply_updates(params, updates), log_multiplier + change, (first, second), mean_cost

    params, log_multiplier, _, mean_cost = _sweep(start, update, flows, budgets, 4, sizes.map_steps)
    return Maps(params, jnp.exp(log_multiplier), mean_cost)


def _map_network(sizes: Sizes) -> nn.MLP:
    return nn.MLP(sizes.map_hidden, 2, output_scale=1e-2)


def train_one_step(landscape: Landscape, flows: Flows, weights: tuple[float, ...], sizes: Sizes) -> Params:
    """FQL's one-step policies mu(z): minimise alpha |mu(z) - flow(z)|^2 - value, for each weight alpha."""
    network: Any = nn.MLP(sizes.flow_hidden, 2)
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.map_steps, alpha=0.05))

    def start(key):
        params = network.init(key, jnp.zeros((1, 2)))
        return params, adam.init(params)

    def update(own, weight, state, key):
        params, optimiser = state
        pick = jax.random.randint(key, (sizes.batch,), 0, sizes.pool)

        def loss(params):
            actions = network.apply(params, own.noise[pick])
            value = landscape.value(actions)
            distance = jnp.mean((actions - own.base[pick]) ** 2)
            return weight * distance - values.value_scale(value) * value.mean()

        updates, optimiser = adam.update(jax.grad(loss)(params), optimiser)
        return optax.apply_updates(params, updates), optimiser

    return _sweep(start, update, flows, weights, 5, sizes.map_steps)[0]


# --- measuring -----------------------------------------------------------------------------------------------


def _truth(landscape: Landscape, start, log_start, actions, matrix) -> Truth:
    """The measurement from points, their log-density, their images under the map and the map's Jacobian."""
    sign, log_determinant = jnp.linalg.slogdet(matrix)
    modes = jnp.arange(len(landscape.mode_names))
    return Truth(
        actions=actions,
        value=landscape.value(actions).mean(),
        kl=jnp.mean(log_start - landscape.log_density(actions) - log_determinant),
        off=landscape.off_support(actions).mean(),
        modes=jnp.mean(landscape.mode_of(actions)[:, None] == modes, axis=0),
        displacement=jnp.sqrt(jnp.mean(jnp.sum((actions - start) ** 2, axis=-1))),
        folded=jnp.mean(sign <= 0),
    )


def measure_map(landscape: Landscape, move: Callable, key: PRNGKey, samples: int) -> Truth:
    """Measure a -> a + delta(a) at exact samples of the data's density."""
    data = landscape.sample(key, samples)
    displacement, matrix = jacobian.value_and_jacobian(move, data)
    return _truth(landscape, data, landscape.log_density(data), data + displacement, jnp.eye(2) + matrix)


def measure_one_step(landscape: Landscape, policy: Callable, noise: jax.Array, base: jax.Array) -> Truth:
    """Measure z -> mu(z). The displacement is the distance to the flow's action from the same noise."""
    actions, matrix = jacobian.value_and_jacobian(policy, noise)
    log_noise = jnp.sum(jax.scipy.stats.norm.logpdf(noise), axis=-1)
    return _truth(landscape, base, log_noise, actions, matrix)


def measure_maps(landscape: Landscape, maps: Maps, sizes: Sizes) -> Truth:
    """Measure every map; axes (seeds, budgets)."""
    network: Any = _map_network(sizes)
    key = jax.random.key(MEASURE_KEY)
    one = lambda params: measure_map(landscape, partial(network.apply, params), key, sizes.measured)  # noqa: E731
    return jax.jit(lambda params: jax.lax.map(lambda row: jax.lax.map(one, row), params))(maps.params)


def measure_one_steps(landscape: Landscape, params: Params, flows: Flows, sizes: Sizes) -> Truth:
    """Measure every one-step policy; axes (seeds, weights)."""
    network: Any = nn.MLP(sizes.flow_hidden, 2)

    def row(each):
        params, noise, base = each
        noise, base = noise[: sizes.measured], base[: sizes.measured]
        return jax.lax.map(lambda own: measure_one_step(landscape, partial(network.apply, own), noise, base), params)

    return jax.jit(lambda *each: jax.lax.map(row, each))(params, flows.noise, flows.base)


def measure_closed_form(
    landscape: Landscape, flows: Flows, constraint: Renoised, budgets: tuple[float, ...], steps: int, sizes: Sizes
) -> Truth:
    """Measure FiDec's closed form with the known value, without training; axes (seeds, budgets)."""
    key = jax.random.key(MEASURE_KEY)
    gradient = jax.grad(lambda a: landscape.value(a).sum())

    def one(own, budget):
        velocity = velocity_of(sizes, own.params)

        def scores(a, k):
            return constraint.scores(a, Model(velocity, lambda noise: noise, a, own.t_eps), k)

        # The same key in all calls, so that the displacement is a function of the action.
        move = lambda a: walk(gradient, scores, a, key, budget, constraint, steps)  # noqa: E731
        return measure_map(landscape, move, key, sizes.measured)

    def row(own):
        return jax.lax.map(partial(one, own), jnp.asarray(budgets))

    return jax.jit(lambda flows: jax.lax.map(row, flows))(flows)


def rows(landscape: Landscape, method: str, unit: str, budgets, truth: Truth, **more: Any) -> list[dict[str, Any]]:
    """One dictionary for each seed and budget.

    `kl` is a lower bound where the map folds or lays one mode on another; `kl_neighbours`, by distances between
    samples, sees both.
    """
    fresh = np.asarray(landscape.sample(jax.random.key(1), truth.actions.shape[-2]), np.float64)
    moved = np.asarray(truth.actions, np.float64)
    numbers = jax.tree.map(np.asarray, truth._replace(actions=None))
    out = []
    for seed, index in np.ndindex(*numbers.value.shape):
        own = {name: np.asarray(value)[seed, index].item() for name, value in more.items()}
        fields = {name: value[seed, index].tolist() for name, value in numbers._asdict().items() if value is not None}
        finite = bool(np.isfinite(moved[seed, index]).all())
        fields["kl_neighbours"] = account.neighbour_kl(moved[seed, index], fresh) if finite else None
        head = {"landscape": landscape.name, "method": method, "budget": budgets[index], "unit": unit, "seed": seed}
        out.append({**head, **fields, **own})
    return out


# --- the frontier --------------------------------------------------------------------------------------------


def frontier_at(rows: Iterable[Row], kl: float) -> dict[str, dict[str, Any] | None]:
    """For each method, the best value at a true KL of at most `kl` nats: mean, smallest and largest over seeds.

    For one seed it is the larger of two numbers: the largest value among the runs within `kl`, and the value at `kl`
    by linear interpolation in log KL between the two runs around it. `off` is the off-support mass at the same point,
    `n` the number of seeds with a run within `kl`, `of` the number of all seeds. A method without such a seed gets
    None.
    """
    runs: dict[str, dict[Any, list[Row]]] = {}
    landscapes = set()
    for row in rows:
        landscapes.add(row["landscape"])
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    if len(landscapes) > 1:
        raise ValueError(f"a frontier is of one landscape, but there are rows of {', '.join(sorted(landscapes))}")
    return {method: _over_seeds(list(seeds.values()), kl) for method, seeds in runs.items()}


def _over_seeds(seeds: list[list[Row]], kl: float) -> dict[str, Any] | None:
    best = [point for runs in seeds if (point := _best(runs, kl)) is not None]
    if not best:
        return None
    value, off = np.asarray(best).T
    return {
        "value": (float(value.mean()), float(value.min()), float(value.max())),
        "off": float(off.mean()),
        "n": len(best),
        "of": len(seeds),
    }


def _best(runs: Sequence[Row], kl: float) -> tuple[float, float] | None:
    """(value, off) of the best point within kl; None if every run has a larger KL or no finite KL."""
    points = sorted((max(row["kl"], FLOOR), row["value"], row["off"]) for row in runs if np.isfinite(row["kl"]))
    inside = [point for point in points if point[0] <= kl]
    if not inside:
        return None
    candidates = [(value, off) for _, value, off in inside]
    if len(inside) < len(points):  # the last run inside and the first outside are neighbours
        (low, *before), (high, *after) = inside[-1], points[len(inside)]
        share = np.log(kl / low) / np.log(high / low)
        value, off = ((1 - share) * a + share * b for a, b in zip(before, after, strict=True))
        candidates.append((value, off))
    return max(candidates)
