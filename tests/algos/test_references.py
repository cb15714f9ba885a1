"""One update of a method against its losses written down a second time, plainly.

Nothing of fidec.ops or fidec.algos is used here but the update that is tested; only the random draws follow its
order. A module's gradient is read off the state after the first update: Adam's first moment is then a tenth of it.
Each loss is also written in ways that it must not be: these have to give another gradient.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from fidec import algos, nn
from fidec.types import Batch, Spec
from helpers.algorithms import fast_jit

ROWS, DIM, HIDDEN, DISCOUNT = 8, 2, (8,), 0.9
KEY = jax.random.key(7)
sg = jax.lax.stop_gradient


@cache
def make_batch():
    rng = np.random.default_rng(0)
    observations, following = rng.normal(size=(2, ROWS, 3))
    actions, after = rng.uniform(-0.9, 0.9, (2, ROWS, DIM))
    rewards, returns = rng.normal(0, 2, (2, ROWS))
    batch = Batch(observations, actions, rewards, np.arange(ROWS) % 4 > 0, following, after, returns)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), batch)


def filled(shapes, seed):
    """Noise in every leaf: targets unlike their networks, critics that disagree, biases unlike zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.5, leaf.shape), jnp.float32), shapes)


class Step(NamedTuple):
    """The state before an update, the gradients that it took, as vectors by module, and what else was kept of it."""

    before: Any
    gradients: dict[str, np.ndarray]
    kept: Any

    def check(self, module, right, *wrong):
        """The module's gradient is that of the loss `right`, a function of its parameters, and of no `wrong` one."""
        taken, own = self.gradients[module], self.before.params[module]
        gradients = lambda own: [ravel_pytree(jax.grad(loss)(own))[0] for loss in (right, *wrong)]  # noqa: E731
        expected, *others = (np.asarray(gradient) for gradient in fast_jit(gradients)(own))
        np.testing.assert_allclose(taken, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
        for i, other in enumerate(others):
            assert np.linalg.norm(taken - other) > 0.01 * np.linalg.norm(expected), f"wrong loss {i} agrees as well"


def step(name, modules, *, change=lambda state: state, keep=lambda after, metrics: (), **options):
    """One update of a state full of noise, which `change` may change further.

    Only what is asked for comes out of it, so that nothing else is compiled: compilation is all of this file's time.
    """
    algorithm = algos.make(name, Spec((3,), DIM), **{"hidden": HIDDEN, "discount": DISCOUNT, **options})
    shapes = jax.eval_shape(algorithm.init, KEY)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state = change(state._replace(params=filled(shapes.params, 1), target=filled(shapes.target, 2)))

    def update(state, batch):
        after, metrics = algorithm.update(state, batch, KEY)
        moments = {module: optax.tree.get(after.optimiser[module], "mu") for module in modules}
        return moments, keep(after, metrics)

    moments, kept = fast_jit(update)(state, make_batch())
    return Step(state, {name: 10.0 * np.asarray(ravel_pytree(mu)[0]) for name, mu in moments.items()}, kept)


def normal(key, *shape):
    return jax.random.normal(key, shape or (ROWS, DIM))


def clip(actions):
    return jnp.clip(actions, -1.0, 1.0)


def td_loss(network, batch, next_values, own, reduce=jnp.mean):
    """The squared TD error: a mean over rows, and by `reduce` over critics."""
    goal = sg(batch.rewards + DISCOUNT * batch.masks * next_values)
    errors = (network.apply(own, batch.observations, batch.actions) - goal) ** 2
    return reduce(errors.mean(axis=1))


def policy_critic_loss(run, batch, aggregate, next_actions):
    """The TD loss of the policy's next actions, judged by the target critics."""
    critic = nn.Critic(HIDDEN)
    q = aggregate(critic.apply(run.before.target["critic"], batch.next_observations, clip(next_actions)), axis=0)
    return partial(td_loss, critic, batch, q)


# Methods with a deterministic or a Gaussian policy.


def test_rebrac():
    limit, actor_penalty, critic_penalty, rate = 0.1, 0.5, 0.7, 0.3
    options = {"actor_penalty": actor_penalty, "critic_penalty": critic_penalty, "noise_limit": limit}
    targets = lambda after, metrics: after.target  # noqa: E731
    second = lambda state: state._replace(step=state.step + 1)  # noqa: E731  # the first one of the actor's
    run = step("rebrac", ("critic", "actor"), change=second, keep=targets, target_rate=rate, **options)
    batch = make_batch()
    before, critic = run.before, nn.Critic(HIDDEN)
    actor: Any = nn.Actor(HIDDEN, DIM)
    noise = 0.2 * normal(KEY)
    assert 0.1 < jnp.mean(jnp.abs(noise) > limit) < 0.9

    def critic_loss(aggregate=jnp.min, policy=before.target["actor"], limit=limit, total=jnp.sum):
        aim = jnp.tanh(actor.apply(policy, batch.next_observations))
        actions = clip(aim + jnp.clip(noise, -limit, limit))
        q = aggregate(critic.apply(before.target["critic"], batch.next_observations, actions), axis=0)
        distance = total((actions - batch.next_actions) ** 2, axis=-1)
        return partial(td_loss, critic, batch, q - critic_penalty * distance)

    others = [{"aggregate": jnp.mean}, {"policy": before.params["actor"]}, {"limit": 9.0}, {"total": jnp.mean}]
    run.check("critic", critic_loss(), *(critic_loss(**other) for other in others))

    def actor_loss(own, aggregate=jnp.min, judge=before.params["critic"], size=jnp.abs):
        actions = jnp.tanh(actor.apply(own, batch.observations))
        q = aggregate(critic.apply(judge, batch.observations, actions), axis=0)
        distance = jnp.sum((actions - batch.actions) ** 2, axis=-1)
        return actor_penalty * distance.mean() - q.mean() / sg(size(q).mean())

    others = [{"aggregate": jnp.mean}, {"judge": before.target["critic"]}, {"size": jnp.square}]
    run.check("actor", actor_loss, *(partial(actor_loss, **other) for other in others))

    # On a step of the actor's both targets follow the parameters as they were before it.
    for module in ("actor", "critic"):
        expected = jax.tree.map(lambda new, old: rate * new + (1 - rate) * old, before.params, before.target)[module]
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), run.kept[module], expected)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["recommended", "released"])
def test_rebrac_updates_its_actor_at_every_second_step(preset):
    """FQL counts steps from 1. With one Adam for all modules, momentum moves the actor on the third step too."""
    algorithm = algos.make("rebrac", Spec((3,), DIM), preset=preset, hidden=(4,))
    update = fast_jit(lambda state, batch: algorithm.update(state, batch, KEY)[0])
    states = [fast_jit(algorithm.init)(KEY)]
    for _ in range(3):
        states.append(update(states[-1], make_batch()))
    for part, name in (("params", "actor"), ("target", "actor"), ("target", "critic"), ("params", "critic")):
        values = [np.asarray(ravel_pytree(getattr(state, part)[name])[0]) for state in states]
        moved = [not np.array_equal(old, new) for old, new in pairwise(values)]
        momentum = (part, name, preset) == ("params", "actor", "released")
        assert moved == ([True] * 3 if (part, name) == ("params", "critic") else [False, True, momentum])


def test_iql():
    expectile, alpha = 0.8, 10.0

    def change(state):  # V among the values of Q, so that both sides of the expectile count
        layers = dict(state.params["value"]["params"]["MLP_0"])
        layers["Dense_1"] = layers["Dense_1"] | {"bias": layers["Dense_1"]["bias"] + 1.6}
        return state._replace(params=state.params | {"value": {"params": {"MLP_0": layers}}})

    run = step("iql", ("value", "critic", "actor"), change=change, expectile=expectile, alpha=alpha)
    batch, before, critic, actor = make_batch(), run.before, nn.Critic(HIDDEN), nn.Actor(HIDDEN, DIM)
    value: Any = nn.Value(HIDDEN)

    def q(params, aggregate=jnp.min):
        return aggregate(critic.apply(params, batch.observations, batch.actions), axis=0)

    def value_loss(own, params=before.target["critic"], aggregate=jnp.min, above=expectile):
        error = q(params, aggregate) - value.apply(own, batch.observations)
        return jnp.mean(jnp.where(error > 0, above, 1 - above) * error**2)

    errors = q(before.target["critic"]) - value.apply(before.params["value"], batch.observations)
    assert 0 < jnp.sum(errors > 0) < ROWS
    others = [{"params": before.params["critic"]}, {"aggregate": jnp.mean}, {"above": 1 - expectile}]
    run.check("value", value_loss, *(partial(value_loss, **other) for other in others))

    now, then = (value.apply(before.params["value"], s) for s in (batch.observations, batch.next_observations))
    critic_loss = partial(td_loss, critic, batch, then, reduce=jnp.sum)
    run.check("critic", critic_loss, partial(td_loss, critic, batch, then), partial(td_loss, critic, batch, now))

    def actor_loss(own, params=before.params["critic"], aggregate=jnp.min, limit=100.0):
        weights = jnp.minimum(jnp.exp(alpha * (q(params, aggregate) - now)), limit)
        return jnp.mean(weights * 0.5 * jnp.sum((batch.actions - actor.apply(own, batch.observations)) ** 2, axis=-1))

    weights = np.exp(alpha * (q(before.params["critic"]) - now))
    assert 0 < np.sum(weights > 100.0) < ROWS
    others = [{"params": before.target["critic"]}, {"aggregate": jnp.mean}, {"limit": jnp.inf}]
    run.check("actor", actor_loss, *(partial(actor_loss, **other) for other in others))


# Methods with a flow.

FIELD: Any = nn.VelocityField(HIDDEN, DIM)


def solve(params, observations, noise, steps=3):
    """Euler steps from noise; not clipped."""
    x = noise
    for i in range(steps):
        x = x + FIELD.apply(params, observations, x, jnp.full((ROWS, 1), i / steps)) / steps
    return x


def matching(params, batch, key):
    """The flow-matching error of each row, a mean over dimensions."""
    noise_key, time_key = jax.random.split(key)
    z, t = normal(noise_key), jax.random.uniform(time_key, (ROWS, 1))
    v = FIELD.apply(params, batch.observations, (1 - t) * z + t * batch.actions, t)
    return jnp.mean((v - (batch.actions - z)) ** 2, axis=-1)


@pytest.mark.parametrize(
    ("aggregate", "normalize"), [("min", False), pytest.param("mean", True, marks=pytest.mark.slow)]
)
def test_fql(aggregate, normalize):
    alpha = 0.1
    options = {"alpha": alpha, "flow_steps": 3, "q_aggregate": aggregate, "normalize_q": normalize}
    run, batch = step("fql", ("critic", "flow", "policy"), **options), make_batch()
    params, critic = run.before.params, nn.Critic(HIDDEN)
    student: Any = nn.ResidualMap(HIDDEN, DIM)
    next_key, flow_key, noise_key = jax.random.split(KEY, 3)

    next_actions = student.apply(params["policy"], batch.next_observations, normal(next_key))
    right, wrong = (jnp.min, jnp.mean) if aggregate == "min" else (jnp.mean, jnp.min)
    run.check("critic", *(policy_critic_loss(run, batch, how, next_actions) for how in (right, wrong)))
    run.check("flow", lambda own: matching(own, batch, flow_key).mean())

    noise = normal(noise_key)
    taught = solve(params["flow"], batch.observations, noise)
    proposed = student.apply(params["policy"], batch.observations, noise)
    assert all(jnp.any(jnp.abs(actions) > 1.0) for actions in (taught, proposed))

    def policy_loss(own, teacher=clip, pupil=lambda a: a, aggregate=jnp.mean, normalize=normalize, total=jnp.mean):
        actions = student.apply(own, batch.observations, noise)
        q = aggregate(critic.apply(params["critic"], batch.observations, clip(actions)), axis=0)
        scale = 1.0 / sg(jnp.abs(q).mean()) if normalize else 1.0
        distance = total((pupil(actions) - teacher(taught)) ** 2, axis=-1)
        return alpha * distance.mean() - scale * q.mean()

    others = [{"teacher": lambda a: a}, {"pupil": clip}, {"aggregate": jnp.min}, {"normalize": not normalize}]
    others.append({"total": jnp.sum})
    run.check("policy", policy_loss, *(partial(policy_loss, **other) for other in others))


@pytest.mark.parametrize(
    ("aggregate", "normalize"), [("min", False), pytest.param("mean", True, marks=pytest.mark.slow)]
)
def test_fan(aggregate, normalize):
    actor_penalty, critic_penalty, expectile = 0.1, 0.3, 0.8
    options = {"actor_penalty": actor_penalty, "critic_penalty": critic_penalty, "expectile": expectile}
    options |= {"q_aggregate": aggregate, "normalize_q": normalize}
    run, batch = step("fan", ("critic", "upper", "flow", "policy"), **options), make_batch()
    params, target = run.before.params, run.before.target["critic"]
    critic: Any = nn.Critic(HIDDEN)
    student: Any = nn.ResidualMap(HIDDEN, DIM)
    flow_key, other_key = jax.random.split(KEY)
    next_key, upper_key, policy_key = jax.random.split(other_key, 3)
    run.check("flow", lambda own: matching(own, batch, flow_key).mean())

    def q(own, actions, noise):
        return critic.apply(own, batch.observations, jnp.concatenate([actions, noise], axis=-1))

    def anchoring(observations, noise, actions, key):
        t = jax.random.uniform(key, (ROWS, 1))
        return (actions - noise - FIELD.apply(params["flow"], observations, (1 - t) * noise + t * actions, t)) ** 2

    noise_key, time_key = jax.random.split(next_key)
    noise = normal(noise_key)
    proposed = student.apply(params["policy"], batch.next_observations, noise)
    assert jnp.any(jnp.abs(proposed) > 1.0)
    right, wrong = (jnp.min, jnp.mean) if aggregate == "min" else (jnp.mean, jnp.min)

    def critic_loss(own, aggregate=right, anchored=clip, total=jnp.sum, noise=noise):
        z = aggregate(critic.apply(params["upper"], batch.next_observations, clip(proposed)), axis=0)
        penalty = total(anchoring(batch.next_observations, normal(noise_key), anchored(proposed), time_key), axis=-1)
        goal = batch.rewards + DISCOUNT * batch.masks * (z - critic_penalty * penalty)
        return jnp.mean((q(own, batch.actions, noise) - goal) ** 2)

    others = [{"aggregate": wrong}, {"anchored": lambda a: a}, {"total": jnp.mean}, {"noise": normal(KEY)}]
    run.check("critic", critic_loss, *(partial(critic_loss, **other) for other in others))

    def upper_loss(own, judge=target, aggregate=jnp.mean, above=expectile):
        error = aggregate(q(judge, batch.actions, normal(upper_key)), axis=0)
        error -= critic.apply(own, batch.observations, batch.actions)
        return jnp.mean(jnp.where(error > 0, above, 1 - above) * error**2)

    others = [{"judge": params["critic"]}, {"aggregate": jnp.min}, {"above": 1 - expectile}]
    run.check("upper", upper_loss, *(partial(upper_loss, **other) for other in others))

    noise_key, time_key, critic_key = jax.random.split(policy_key, 3)

    def policy_loss(own, anchored=lambda a: a, key=critic_key, aggregate=jnp.mean, normalize=normalize, weight=1.0):
        actions = student.apply(own, batch.observations, normal(noise_key))
        anchor = anchoring(batch.observations, normal(noise_key), anchored(actions), time_key).mean()
        judged = aggregate(q(params["critic"], clip(actions), normal(key)), axis=0)
        best = aggregate(critic.apply(params["upper"], batch.observations, clip(actions)), axis=0)
        scales = [1.0 / sg(jnp.abs(each).mean()) if normalize else 1.0 for each in (judged, best)]
        return actor_penalty * anchor - scales[0] * judged.mean() - weight * scales[1] * best.mean()

    others = [{"anchored": clip}, {"key": noise_key}, {"aggregate": jnp.min}, {"normalize": not normalize}]
    others.append({"weight": 0.0})
    run.check("policy", policy_loss, *(partial(policy_loss, **other) for other in others))


def test_fawac():
    alpha, limit = 1.5, 13.0
    run = step("fawac", ("critic", "value", "flow"), alpha=alpha, weight_limit=limit, flow_steps=3)
    batch, critic, params, target = make_batch(), nn.Critic(HIDDEN), run.before.params, run.before.target["critic"]
    value: Any = nn.Value(HIDDEN)
    next_key, flow_key = jax.random.split(KEY)

    next_actions = solve(params["flow"], batch.next_observations, normal(next_key))
    run.check("critic", *(policy_critic_loss(run, batch, how, next_actions) for how in (jnp.mean, jnp.min)))

    def q(params, aggregate):
        return aggregate(critic.apply(params, batch.observations, batch.actions), axis=0)

    def value_loss(own, params=target, aggregate=jnp.mean):
        return jnp.mean((value.apply(own, batch.observations) - q(params, aggregate)) ** 2)

    others = [{"params": params["critic"]}, {"aggregate": jnp.min}]
    run.check("value", value_loss, *(partial(value_loss, **other) for other in others))

    advantage = q(params["critic"], jnp.mean) - value.apply(params["value"], batch.observations)
    assert 0 < jnp.sum(jnp.exp(alpha * advantage) > limit) < ROWS

    def flow_loss(own, judge=params["critic"], aggregate=jnp.mean, limit=limit):
        advantage = q(judge, aggregate) - value.apply(params["value"], batch.observations)
        return jnp.mean(jnp.minimum(jnp.exp(alpha * advantage), limit) * matching(own, batch, flow_key))

    others = [{"judge": target}, {"aggregate": jnp.min}, {"limit": jnp.inf}]
    run.check("flow", flow_loss, *(partial(flow_loss, **other) for other in others))


def test_fbrac():
    alpha = 0.1
    run, batch = step("fbrac", ("critic", "flow"), alpha=alpha, normalize_q=True, flow_steps=3), make_batch()
    params, critic = run.before.params, nn.Critic(HIDDEN)
    next_key, flow_key, noise_key = jax.random.split(KEY, 3)
    next_actions = solve(params["flow"], batch.next_observations, normal(next_key))
    run.check("critic", *(policy_critic_loss(run, batch, how, next_actions) for how in (jnp.mean, jnp.min)))

    def flow_loss(own, aggregate=jnp.mean, normalize=True, bound=clip):
        actions = bound(solve(own, batch.observations, normal(noise_key)))
        q = aggregate(critic.apply(params["critic"], batch.observations, actions), axis=0)
        scale = 1.0 / sg(jnp.abs(q).mean()) if normalize else 1.0
        return alpha * matching(own, batch, flow_key).mean() - scale * q.mean()

    others = [{"aggregate": jnp.min}, {"normalize": False}, {"bound": lambda a: a}]
    run.check("flow", flow_loss, *(partial(flow_loss, **other) for other in others))


@pytest.mark.parametrize("steering", ["direct", pytest.param("distilled", marks=pytest.mark.slow)])
def test_lps(steering):
    """The mean flow's loss as it was published, with noise at time 1 and u = z - g."""
    names = ("critic", "flow", "policy") + (("latent_critic",) if steering == "distilled" else ())
    run, batch = step("lps", names, steering=steering), make_batch()
    params, critic = run.before.params, nn.Critic(HIDDEN)
    mean_flow: Any = nn.MeanFlow(HIDDEN, DIM)
    actor: Any = nn.Actor(HIDDEN, DIM)
    flow_key, latent_key = jax.random.split(KEY)

    def sphere(x):
        return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6) * DIM**0.5

    def sample(observations, z):
        """One step; not clipped."""
        return mean_flow.apply(params["flow"], observations, z, jnp.zeros((ROWS, 1)), jnp.ones((ROWS, 1)))

    def latent(own, observations, bound=sphere):
        return bound(actor.apply(own, observations))

    def next_actions(bound=sphere):
        return sample(batch.next_observations, latent(params["policy"], batch.next_observations, bound))

    others = ((jnp.mean, sphere), (jnp.min, lambda z: -sphere(z)))
    wrong = (policy_critic_loss(run, batch, how, next_actions(bound)) for how, bound in others)
    run.check("critic", policy_critic_loss(run, batch, jnp.min, next_actions()), *wrong)

    noise_key, time_key = jax.random.split(flow_key)
    times = jax.nn.sigmoid(jax.random.normal(time_key, (2, ROWS, 1)) - 0.4)
    late, early = times.max(axis=0), times.min(axis=0)
    early = jnp.where(jnp.arange(ROWS)[:, None] % 4 < 3, late, early)  # three quarters without an interval

    def flow_loss(own, early=early, bound=sphere, weigh=True, mean=True):
        e = bound(normal(noise_key))
        z, v = (1 - late) * batch.actions + late * e, e - batch.actions
        u = lambda z, t, r: z - mean_flow.apply(own, batch.observations, z, 1 - t, 1 - r)  # noqa: E731
        value, change = jax.jvp(u, (z, late, early), (v, jnp.ones_like(late), jnp.zeros_like(early)))
        goal = v - (late - early) * change if mean else v
        error = jnp.mean((value - sg(goal)) ** 2, axis=-1)
        return jnp.mean(error / sg(jnp.sqrt(error + 1e-3)) if weigh else error)

    others = [{"early": times.min(axis=0)}, {"bound": lambda z: z}, {"weigh": False}, {"mean": False}]
    run.check("flow", flow_loss, *(partial(flow_loss, **other) for other in others))

    def q(z, bound=clip):
        return critic.apply(params["critic"], batch.observations, bound(sample(batch.observations, z)))

    def policy_loss(own, bound=clip, size=jnp.abs, distilled=steering == "distilled", aggregate=jnp.mean):
        z = latent(own, batch.observations)
        heads = critic.apply(params["latent_critic"], batch.observations, z) if distilled else q(z, bound)
        value = aggregate(heads, axis=0)
        return -value.mean() / sg(size(value).mean())

    others = [{"size": jnp.square}, {"aggregate": jnp.min}]
    others.append({"distilled": False} if steering == "distilled" else {"bound": lambda a: a})
    run.check("policy", policy_loss, *(partial(policy_loss, **other) for other in others))

    if steering == "distilled":

        def latent_critic_loss(own, bound=sphere, aggregate=jnp.mean):
            z = bound(normal(latent_key))
            goal = aggregate(q(z), axis=0)
            return jnp.mean((critic.apply(own, batch.observations, z) - goal) ** 2)

        others = [{"bound": lambda z: z}, {"aggregate": jnp.min}]
        run.check("latent_critic", latent_critic_loss, *(partial(latent_critic_loss, **other) for other in others))


@pytest.mark.slow  # the closed forms of adjoint matching are in tests/ops
@pytest.mark.parametrize("variant", ["plain", "edit", "one_step"])
def test_qam(variant):
    tau, rho, scale, alpha, steps = 10.0, 0.5, 0.3, 0.1, 3
    on_top = {"plain": (), "edit": ("edit", "temperature"), "one_step": ("student",)}[variant]
    options = {"inverse_temperature": tau, "pessimism": rho, "edit_scale": scale, "alpha": alpha, "flow_steps": steps}
    options |= {"variant": variant, "critics": 3, "grad_clip": None}
    run, batch = step("qam", ("critic", "flow", "policy", *on_top), **options), make_batch()
    params, target = run.before.params, run.before.target
    critic: Any = nn.Critic(HIDDEN, ensemble=3)
    editor: Any = nn.EditActor(HIDDEN, DIM)
    student: Any = nn.ResidualMap(HIDDEN, DIM)
    flow_key, key = jax.random.split(KEY)
    next_key, start_key, path_key, top_key = jax.random.split(key, 4)
    path_start, top_start = normal(start_key, 2, ROWS, DIM)

    def edited(own, observations, actions, key):
        """The edited action, and the log-density of the edit, by the change of variables."""
        mean, log_std = editor.apply(own, observations, actions)
        u = mean + jnp.exp(log_std) * normal(key)
        gaussian = -0.5 * ((u - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        return clip(actions + scale * jnp.tanh(u)), jnp.sum(gaussian - jnp.log1p(-(jnp.tanh(u) ** 2)), axis=-1)

    noise_key, edit_key = jax.random.split(next_key)
    next_actions = clip(solve(params["policy"], batch.next_observations, normal(noise_key)))
    if variant == "edit":
        next_actions, _ = edited(params["edit"], batch.next_observations, next_actions, edit_key)
    if variant == "one_step":
        next_actions = clip(student.apply(params["student"], batch.next_observations, normal(noise_key)))

    def critic_loss(rho=rho, judge=target["critic"], spread=jnp.std):
        q = critic.apply(judge, batch.next_observations, next_actions)
        return partial(td_loss, critic, batch, q.mean(axis=0) - rho * spread(q, axis=0))

    others = [{"rho": 0.0}, {"judge": params["critic"]}, {"spread": partial(jnp.std, ddof=1)}]
    run.check("critic", critic_loss(), *(critic_loss(**other) for other in others))
    run.check("flow", lambda own: matching(own, batch, flow_key).mean())

    h = 1.0 / steps

    def velocity(params, x, t):
        return FIELD.apply(params, batch.observations, x, jnp.full((ROWS, 1), t))

    def sigma(t):
        return (2 * (1 - t + h) / (t + h)) ** 0.5

    def walk(last):
        shocks, points = normal(path_key, steps - 1, ROWS, DIM), [path_start]
        for i, shock in enumerate(shocks):
            x, t = points[-1], i * h
            drift = 2 * velocity(params["policy"], x, t) - x / (t + h)
            points.append(x + h * drift + h**0.5 * sigma(t) * shock)
        return points, points[-1] + h * velocity(last, points[-1], 1 - h)

    assert jnp.any(jnp.abs(walk(target["flow"])[1]) > 1.0)

    beta = target["flow"]

    def policy_loss(own, base=beta, last=beta, judge=target["critic"], bound=clip, lag=h, tau=tau):
        points, end = walk(last)
        q = lambda x: critic.apply(judge, batch.observations, bound(x)).mean(axis=0).sum()  # noqa: E731
        adjoint, loss = -tau * jax.grad(q)(end), 0.0
        for i in reversed(range(steps)):
            x, t = points[i], i * h
            drift = lambda x: 2 * velocity(base, x, t + lag) - x / (t + h)  # noqa: B023, E731
            adjoint = adjoint + h * jax.vjp(drift, x)[1](adjoint)[0]
            error = 2 * (velocity(own, x, t) - velocity(base, x, t)) / sigma(t) + sigma(t) * sg(adjoint)
            loss += jnp.mean(jnp.sum(error**2, axis=-1))
        return loss

    others = [{"base": params["flow"]}, {"last": params["policy"]}, {"judge": params["critic"]}, {"lag": 0.0}]
    others += [{"bound": lambda a: a}, {"tau": -tau}]
    run.check("policy", policy_loss, *(partial(policy_loss, **other) for other in others))

    taught = solve(params["policy"], batch.observations, top_start)
    if variant == "edit":
        weight = params["temperature"]

        def edit_loss(own, judge=params["critic"], weight=weight):
            actions, log_probs = edited(own, batch.observations, clip(taught), top_key)
            q = critic.apply(judge, batch.observations, actions).mean(axis=0)
            return jnp.mean(jnp.exp(weight) * log_probs - q)

        run.check("edit", edit_loss, partial(edit_loss, judge=target["critic"]), partial(edit_loss, weight=0.0))
        _, log_probs = edited(params["edit"], batch.observations, clip(taught), top_key)
        temperature = lambda own, aim=-0.5 * DIM: jnp.exp(own) * (-log_probs.mean() - aim)  # noqa: E731
        run.check("temperature", temperature, partial(temperature, aim=0.0))
    if variant == "one_step":

        def student_loss(own, teacher=clip, pupil=lambda a: a, total=jnp.mean):
            actions = student.apply(own, batch.observations, top_start)
            q = critic.apply(params["critic"], batch.observations, clip(actions)).mean(axis=0)
            return alpha * total((pupil(actions) - teacher(taught)) ** 2, axis=-1).mean() - q.mean()

        others = [{"teacher": lambda a: a}, {"pupil": clip}, {"total": jnp.sum}]
        run.check("student", student_loss, *(partial(student_loss, **other) for other in others))


# Maxima over draws and minima over critics do not commute: at Q_1 = -Q_2 they differ in sign.


def crossing(critic):
    """Parameters by which Q_1 rises with the first action dimension and Q_2 = -Q_1: g(x) - g(-x), with two units.

    For ReLU that is x itself.
    """
    first = jnp.zeros((2, 3 + DIM, 2)).at[:, 3].set(jnp.asarray([1.0, -1.0]))
    last = jnp.asarray([[1.0, -1.0], [-1.0, 1.0]])[:, :, None]
    layers = {"Dense_0": {"kernel": first}, "Dense_1": {"kernel": last}}
    return jax.tree.map_with_path(
        lambda path, old: layers[path[-2].key].get(path[-1].key, jnp.zeros_like(old)).reshape(old.shape), critic
    )


def crossed(state):
    return state._replace(target=state.target | {"critic": crossing(state.target["critic"])})


def odd_mish(x):
    return jax.nn.mish(x) - jax.nn.mish(-x)


@pytest.mark.parametrize("options", [{}, {"max_q_backup": False}, {"q_norm": True}], ids=str)
def test_cac_takes_the_lower_of_each_critics_best_draw(options):
    def change(state):
        still = jax.tree.map(jnp.zeros_like, state.target["actor"])  # F = 0 leaves draws around zero
        return crossed(state._replace(target=state.target | {"actor": still}))

    batch, rates = make_batch(), {"critic": 0.01, "actor": 0.3}
    kept = {} if options else {"keep": lambda after, metrics: after.params}  # the actor's step takes long to compile
    own = {"hidden": (2,), "learning_rate": rates["critic"], "policy_learning_rate": rates["actor"]}
    run = step("cac", ("critic",), change=change, grad_clip=None, **kept, **own, **options)
    for module, rate in rates.items() if kept else ():  # Adam's first step is its rate
        old, new = (ravel_pytree(params[module])[0] for params in (run.before.params, run.kept))
        np.testing.assert_allclose(np.abs(new - old).max(), rate, rtol=1e-3)
    draws = 1 if "max_q_backup" in options else 10
    noise = [normal(key, draws, ROWS, DIM) for key in jax.random.split(jax.random.split(KEY, 4)[0])]
    x = noise[0] * 80.0 * 0.25 / ((80.0 - 0.002) ** 2 + 0.25)
    x = (x + noise[1] * (2.0**2 - 0.002**2) ** 0.5) * 0.25 / ((2.0 - 0.002) ** 2 + 0.25)
    heads = jnp.stack([odd_mish(clip(x)[..., 0]), -odd_mish(clip(x)[..., 0])])
    next_values, swapped = heads.max(axis=1).min(axis=0), heads.min(axis=0).max(axis=0)
    if draws > 1:
        assert jnp.all(next_values > 0)
        assert jnp.all(swapped < 0)
    critic = nn.Critic((2,), layer_norm=False, activation=jax.nn.mish)

    def critic_loss(own, next_values=next_values, norm="q_norm" in options, deviation=1):
        goal = batch.rewards + DISCOUNT * batch.masks * next_values
        goal = goal / jnp.std(goal, ddof=deviation) if norm else goal
        errors = (critic.apply(own, batch.observations, batch.actions) - goal) ** 2
        return errors.mean(axis=1).sum()

    others = [{"norm": "q_norm" not in options}, {"next_values": heads.max(axis=(0, 1))}]
    others += [{"next_values": swapped}] if draws > 1 else []
    others += [{"deviation": 0}] if "q_norm" in options else []
    run.check("critic", critic_loss, *(partial(critic_loss, **other) for other in others))


# Policies with a learnt temperature.


def squashed(key, mean, log_std):
    """tanh of a Gaussian draw, and its log-density."""
    u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    logs = jax.scipy.stats.norm.logpdf(u, mean, jnp.exp(log_std)) - jnp.log(1 - jnp.tanh(u) ** 2)
    return jnp.tanh(u), logs.sum(axis=-1)


def check_soft(run, actor, critic, key, aggregates, weight, scale):
    """The actor's loss alpha log pi - agg Q, and the temperature's gradient weight * (H - H*), H* = -scale d."""
    batch, params = make_batch(), run.before.params
    temperature = jnp.exp(params["temperature"])

    def actor_loss(own, aggregate, temperature=temperature):
        actions, logs = squashed(key, *actor.apply(own, batch.observations))
        q = aggregate(critic.apply(params["critic"], batch.observations, actions), axis=0)
        return jnp.mean(temperature * logs - q)

    right, wrong = (partial(actor_loss, aggregate=how) for how in aggregates)
    run.check("actor", right, wrong, partial(right, temperature=jnp.ones(())))
    entropy = -squashed(key, *actor.apply(params["actor"], batch.observations))[1].mean()
    np.testing.assert_allclose(run.gradients["temperature"], weight * (entropy + scale * DIM), rtol=1e-3)


def warm(state):
    return state._replace(params=state.params | {"temperature": jnp.full((), -0.7)})


SOFT = ("critic", "actor", "temperature")


def test_rlpd():
    run, batch = step("rlpd", SOFT, change=warm, q_aggregate="min", target_entropy_scale=0.25), make_batch()
    actor, critic = nn.GaussianActor(HIDDEN, DIM), nn.Critic(HIDDEN)
    next_key, actor_key = jax.random.split(KEY)
    next_actions, _ = squashed(next_key, *actor.apply(run.before.params["actor"], batch.next_observations))
    run.check("critic", *(policy_critic_loss(run, batch, how, next_actions) for how in (jnp.min, jnp.mean)))
    # By log alpha the gradient of alpha (H - H*) is itself.
    check_soft(run, actor, critic, actor_key, (jnp.mean, jnp.min), jnp.exp(-0.7), 0.25)


def test_calql_takes_the_best_draw_by_the_lower_critic():
    change, goal = lambda state: crossed(warm(state)), lambda after, metrics: metrics["td_target"]
    run = step("calql", SOFT[1:], change=change, keep=goal, hidden=(2,), target_entropy_scale=0.25)
    batch, relu = make_batch(), jax.nn.relu
    actor = nn.GaussianActor((2,), DIM, activation=relu, log_std_bounds=(-20.0, 2.0), affine_log_std=True)
    critic = nn.Critic((2,), layer_norm=False, activation=relu)
    keys = jax.random.split(KEY, 5)
    mean, log_std = actor.apply(run.before.params["actor"], batch.next_observations)
    first = squashed(keys[0], jnp.broadcast_to(mean, (10, ROWS, DIM)), log_std)[0][..., 0]
    heads = jnp.stack([first, -first])
    next_values, swapped = heads.min(axis=0).max(axis=0), heads.max(axis=1).min(axis=0)
    goals = [jnp.mean(10.0 * batch.rewards + DISCOUNT * batch.masks * v) for v in (next_values, swapped)]
    np.testing.assert_allclose(run.kept, goals[0], rtol=1e-4)
    assert abs(goals[1] - goals[0]) > 0.05
    assert jnp.all(next_values <= 0)
    assert jnp.any(swapped > 0)
    # By log alpha the gradient of log alpha (H - H*) is H - H*.
    check_soft(run, actor, critic, keys[4], (jnp.min, jnp.mean), 1.0, 0.25)


# The optimiser.


def test_idqls_weight_decay_pulls_the_denoiser_alone():
    """Adam's first step is its rate times g / (|g| + 1e-8); AdamW's has the weights' pull to zero beside it."""
    rate, decay = 0.1, 0.5
    small = {"denoiser_width": 4, "denoiser_blocks": 1, "learning_rate": rate, "weight_decay": decay}
    run = step("idql", ("denoiser", "value"), keep=lambda after, metrics: after.params, **small)
    for module, pull in (("denoiser", decay), ("value", 0.0)):
        old, new = (np.asarray(ravel_pytree(params[module])[0]) for params in (run.before.params, run.kept))
        g = run.gradients[module]
        np.testing.assert_allclose(new, old - rate * (g / (np.abs(g) + 1e-8) + pull * old), rtol=1e-4, atol=1e-5)
