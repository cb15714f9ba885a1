"""The laboratory: on a landscape, fit a flow, train maps under every constraint, measure the truth.

One state, two action dimensions, a known density and a known value. The flow is fitted as FiDec fits it and the maps
are trained with FiDec's own penalties and multiplier, with the value known instead of learned; so what is measured is
the constraint. Seeds and budgets are axes of one array program: the flow is fitted once a seed, its samples are kept.
"""

from __future__ import annotations

from collections.abc import Callable
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
from fidec.ops import dual, fisher, flow, jacobian, values
from fidec.types import Params, PRNGKey

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Sizes:
    """How large and how long; the defaults give one landscape in minutes on two cores."""

    flow_hidden: tuple[int, ...] = (64, 64, 64)
    flow_steps: int = 6000
    map_hidden: tuple[int, ...] = (64, 64)
    map_steps: int = 1000
    batch: int = 128
    pool: int = 8192  # base samples kept of each flow
    measured: int = 4096  # exact samples at which a map is measured
    chunk: int = 250  # steps between two signs of life


@dataclass(frozen=True)
class Entry:
    """A method of the comparison: a constraint and the budgets over which it is swept."""

    budgets: tuple[float, ...]
    constraint: Constraint


class Flows(NamedTuple):
    """What was fitted, with a leading axis of seeds."""

    params: Params
    noise: jax.Array  # (seeds, pool, 2)
    base: jax.Array  # (seeds, pool, 2): ten Euler steps from that noise
    t_eps: jax.Array  # (seeds,): the calibrated time
    losses: jax.Array  # (seeds, n): the criterion at 1 - fisher.DISTANCES


def _scan(step: Callable, state: Any, keys: jax.Array, chunk: int, progress: Progress | None) -> Any:
    """All steps, `chunk` of them in one compiled call."""
    run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[0], donate_argnums=0)
    for start in range(0, len(keys), chunk):
        state = jax.block_until_ready(run(state, keys[start : start + chunk]))
        if progress is not None:
            progress(len(keys[start : start + chunk]))
    return state


def _velocity_network(sizes: Sizes) -> nn.MLP:
    return nn.MLP(sizes.flow_hidden, 2)


def velocity_of(sizes: Sizes, params: Params) -> flow.Velocity:
    """The fitted velocity field."""
    network: Any = _velocity_network(sizes)
    return lambda x, t: network.apply(params, jnp.concatenate([x, jnp.broadcast_to(t, (*x.shape[:-1], 1))], axis=-1))


def fit(landscape: Landscape, seeds: int, sizes: Sizes, progress: Progress | None = None) -> Flows:
    """A flow for each seed, by flow matching on exact samples; then its base samples and its calibrated time."""
    network: Any = _velocity_network(sizes)
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.flow_steps))

    def loss(params, key):
        data_key, key = jax.random.split(key)
        return flow.matching_loss(velocity_of(sizes, params), landscape.sample(data_key, 2 * sizes.batch), key)

    @jax.vmap
    def step(state, key):
        params, optimiser = state
        updates, optimiser = adam.update(jax.grad(loss)(params, key), optimiser)
        return (optax.apply_updates(params, updates), optimiser), None

    def start(key):
        params = network.init(key, jnp.zeros((1, 3)))
        return params, adam.init(params)

    roots = jax.vmap(jax.random.key)(jnp.arange(seeds))
    keys = jax.vmap(lambda root: jax.random.split(jax.random.fold_in(root, 1), sizes.flow_steps), out_axes=1)(roots)
    params, _ = _scan(step, jax.vmap(start)(roots), keys, sizes.chunk, progress)
    return jax.jit(partial(_prepare, landscape, sizes))(params, roots)


def _prepare(landscape: Landscape, sizes: Sizes, params: Params, roots: jax.Array) -> Flows:
    def one(params, root):
        velocity = velocity_of(sizes, params)
        noise = jax.random.normal(jax.random.fold_in(root, 2), (sizes.pool, 2))
        data = landscape.sample(jax.random.fold_in(root, 3), sizes.pool)
        t_eps, losses = fisher.choose_time(velocity, data, root)
        return noise, flow.sample(velocity, noise), t_eps, losses

    noise, base, t_eps, losses = jax.vmap(one)(params, roots)
    return Flows(params, noise, base, t_eps, losses)


def fit_template(landscape: Landscape, seeds: int, sizes: Sizes) -> Flows:
    """The shapes of what `fit` gives, for reading it back."""
    network: Any = _velocity_network(sizes)
    roots = jax.vmap(jax.random.key)(jnp.arange(seeds))
    return _prepare(landscape, sizes, jax.vmap(lambda key: network.init(key, jnp.zeros((1, 3))))(roots), roots)


class Maps(NamedTuple):
    """Trained maps, with leading axes (seeds, budgets)."""

    params: Params
    multiplier: jax.Array
    penalty: jax.Array  # what training held near its budget: a mean over its last steps


def train_maps(
    landscape: Landscape, flows: Flows, entry: Entry, sizes: Sizes, progress: Progress | None = None
) -> Maps:
    """FiDec's residual step and multiplier with a known value, for every seed and budget at once."""
    network: Any = nn.MLP(sizes.map_hidden, 2, output_scale=1e-2)
    constraint = entry.constraint
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.map_steps, alpha=0.05))
    ascent = optax.adam(optax.cosine_decay_schedule(0.05, sizes.map_steps, alpha=0.05))

    def update(flow_params, pool, t_eps, budget, state, key):
        params, log_multiplier, optimisers, smooth = state
        pick_key, penalty_key, data_key = jax.random.split(key, 3)
        base = pool[jax.random.randint(pick_key, (sizes.batch,), 0, sizes.pool)]
        # Noise chooses among the flow's kept samples, each with the same chance: no further solve.
        sample = lambda noise: pool[(jax.scipy.stats.norm.cdf(noise[..., 0]) * sizes.pool).astype(int)]  # noqa: E731

        def loss(params):
            move = partial(network.apply, params)
            displacement = move(base)
            anchors = landscape.sample(data_key, sizes.batch)
            model = Model(velocity_of(sizes, flow_params), sample, anchors, t_eps)
            cost = constraint.penalty(Move(move, base, displacement), model, penalty_key).mean()
            value = landscape.value(base + displacement)
            return jnp.exp(log_multiplier) * cost - values.value_scale(value) * value.mean(), cost

        grads, cost = jax.grad(loss, has_aux=True)(params)
        moves, first = adam.update(grads, optimisers[0])
        move, second = ascent.update(dual.log_gradient(cost - budget), optimisers[1])
        smooth = 0.99 * smooth + 0.01 * cost
        return (optax.apply_updates(params, moves), log_multiplier + move, (first, second), smooth), None

    def start(key):
        params = network.init(key, jnp.zeros((1, 2)))
        log_multiplier = jnp.zeros(())
        return params, log_multiplier, (adam.init(params), ascent.init(log_multiplier)), jnp.zeros(())

    seeds, budgets = len(flows.t_eps), jnp.asarray(entry.budgets)
    roots = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 4))(jnp.arange(seeds))
    keys = jax.vmap(lambda root: jax.random.split(root, sizes.map_steps), out_axes=1)(roots)
    lanes = jax.vmap(update, in_axes=(None, None, None, 0, 0, None))  # budgets share flow, batch and noise
    both = jax.vmap(lanes, in_axes=(0, 0, 0, None, 0, 0))
    state = jax.vmap(lambda root: jax.tree.map(lambda leaf: jnp.stack([leaf] * len(budgets)), start(root)))(roots)
    step = lambda s, k: (both(flows.params, flows.base, flows.t_eps, budgets, s, k)[0], None)  # noqa: E731
    params, log_multiplier, _, smooth = _scan(step, state, keys, sizes.chunk, progress)
    return Maps(params, jnp.exp(log_multiplier), smooth)


def train_one_step(
    landscape: Landscape, flows: Flows, weights: tuple[float, ...], sizes: Sizes, progress: Progress | None = None
) -> Params:
    """FQL's one-step policies mu(z): alpha |mu(z) - flow(z)|^2 - value, for every seed and weight alpha."""
    network: Any = nn.MLP(sizes.flow_hidden, 2)
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, sizes.map_steps, alpha=0.05))

    def update(noise, base, weight, state, key):
        params, optimiser = state
        pick = jax.random.randint(key, (sizes.batch,), 0, sizes.pool)

        def loss(params):
            actions = network.apply(params, noise[pick])
            value = landscape.value(actions)
            distance = jnp.mean((actions - base[pick]) ** 2)
            return weight * distance - values.value_scale(value) * value.mean()

        updates, optimiser = adam.update(jax.grad(loss)(params), optimiser)
        return (optax.apply_updates(params, updates), optimiser), None

    def start(key):
        params = network.init(key, jnp.zeros((1, 2)))
        return params, adam.init(params)

    seeds, alphas = len(flows.t_eps), jnp.asarray(weights)
    roots = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 5))(jnp.arange(seeds))
    keys = jax.vmap(lambda root: jax.random.split(root, sizes.map_steps), out_axes=1)(roots)
    lanes = jax.vmap(update, in_axes=(None, None, 0, 0, None))
    both = jax.vmap(lanes, in_axes=(0, 0, None, 0, 0))
    state = jax.vmap(lambda root: jax.tree.map(lambda leaf: jnp.stack([leaf] * len(alphas)), start(root)))(roots)
    step = lambda s, k: (both(flows.noise, flows.base, alphas, s, k)[0], None)  # noqa: E731
    return _scan(step, state, keys, sizes.chunk, progress)[0]


class Truth(NamedTuple):
    """What a refined policy is, by the known density."""

    actions: jax.Array
    value: jax.Array
    kl: jax.Array  # a lower bound where the map folds
    off: jax.Array
    modes: jax.Array
    displacement: jax.Array
    folded: jax.Array  # share of samples around which the map turns the plane over


def _truth(landscape: Landscape, start, log_start, actions, matrix) -> Truth:
    """From points, their log-density, where they go and the Jacobian of that map."""
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
    """The truth of a -> a + delta(a), from exact samples of the data's density."""
    data = landscape.sample(key, samples)
    displacement, matrix = jacobian.value_and_jacobian(move, data)
    return _truth(landscape, data, landscape.log_density(data), data + displacement, jnp.eye(2) + matrix)


def measure_one_step(landscape: Landscape, policy: Callable, noise: jax.Array, base: jax.Array) -> Truth:
    """The truth of z -> mu(z); displacement is the distance to where the flow carries the same noise."""
    actions, matrix = jacobian.value_and_jacobian(policy, noise)
    log_noise = jnp.sum(jax.scipy.stats.norm.logpdf(noise), axis=-1)
    return _truth(landscape, base, log_noise, actions, matrix)


def measure_maps(landscape: Landscape, maps: Maps, sizes: Sizes) -> Truth:
    """The truth of every map, axes (seeds, budgets); all are measured at the same points."""
    network: Any = nn.MLP(sizes.map_hidden, 2, output_scale=1e-2)
    key = jax.random.key(2**31 - 1)
    one = lambda params: measure_map(landscape, partial(network.apply, params), key, sizes.measured)  # noqa: E731
    return jax.jit(lambda params: jax.lax.map(lambda row: jax.lax.map(one, row), params))(maps.params)


def measure_one_steps(landscape: Landscape, params: Params, flows: Flows, sizes: Sizes) -> Truth:
    """The truth of every one-step policy, axes (seeds, weights)."""
    network: Any = nn.MLP(sizes.flow_hidden, 2)

    def row(each):
        params, noise, base = each
        noise, base = noise[: sizes.measured], base[: sizes.measured]
        return jax.lax.map(lambda own: measure_one_step(landscape, partial(network.apply, own), noise, base), params)

    return jax.jit(lambda *each: jax.lax.map(row, each))(params, flows.noise, flows.base)


def measure_closed_form(
    landscape: Landscape, flows: Flows, budgets: tuple[float, ...], steps: int, sizes: Sizes
) -> Truth:
    """The truth of FiDec's closed form with the constraint `renoised` and the known value; no training."""
    constraint = Renoised(samples=16)
    key = jax.random.key(2**31 - 1)

    def one(params, t_eps, budget):
        velocity = velocity_of(sizes, params)
        scores = lambda a, k: fisher.renoised_scores(velocity, a, k, samples=constraint.samples, t_eps=t_eps)  # noqa: E731
        gradient = jax.grad(lambda a: landscape.value(a).sum())
        # The noise of the scores is one for all calls: the displacement is a function of the action.
        move = lambda a: walk(gradient, scores, a, key, budget, constraint, steps)  # noqa: E731
        return measure_map(landscape, move, key, sizes.measured)

    def seed(each):
        params, t_eps = each
        return jax.lax.map(lambda budget: one(params, t_eps, budget), jnp.asarray(budgets))

    return jax.jit(lambda *each: jax.lax.map(seed, each))(flows.params, flows.t_eps)


def rows(landscape: Landscape, method: str, unit: str, budgets, truth: Truth, **more: Any) -> list[dict[str, Any]]:
    """The stored form: one dictionary for each seed and budget."""
    numbers = jax.tree.map(np.asarray, truth._replace(actions=None))
    out = []
    for seed, index in np.ndindex(*numbers.value.shape):
        own = {name: np.asarray(value)[seed, index].item() for name, value in more.items()}
        fields = {name: value[seed, index].tolist() for name, value in numbers._asdict().items() if value is not None}
        head = {"landscape": landscape.name, "method": method, "budget": budgets[index], "unit": unit, "seed": seed}
        out.append({**head, **fields, **own})
    return out
