"""Translations of single operations to NumPy and ONNX, and random draws as inputs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fidec.errors import ConfigError
from fidec.export import numpy_operations, numpy_source, onnx_model, random_inputs
from fidec.export.trace import Column, Program, _columns, in_user_units, linear, symbolic_batch
from fidec.types import Spec

SPEC = Spec((4,), 2)


def program_of(function):
    types = jax.ShapeDtypeStruct((symbolic_batch(), *SPEC.observation_shape), "float32")
    return Program(jax.make_jaxpr(function)(types), {}, [], 0, SPEC)


def in_numpy(program, observations):
    source = numpy_source.write(program)
    space: dict = {"np": np, "W": source.weights}
    helpers = "\n".join(numpy_operations.HELPERS[name] for name in source.helpers)
    exec(f"{helpers}\ndef act(observations):\n    B = len(observations)\n{source.body}", space)
    return space["act"](observations)


def in_onnx(program, observations):
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model.build(program, {}))
    return session.run(None, {"observations": observations})[0]


@jax.jit
def double(x):
    return 2 * x


def loop(x):
    """A loop with a carry, rows of two kinds and a counter that falls."""
    rows = (jnp.arange(3.0), jnp.arange(3)[::-1], jnp.asarray([[1.0, 2, 3, 4]] * 3) ** 1.5)
    table = jnp.asarray([0.1, 0.2, 0.3])
    return lax.scan(lambda c, r: (jnp.tanh(c + r[0] + table[r[1]]) * r[2], None), x, rows)[0]


def history(x):
    """What a loop collects: the values before its steps, of two carries that change places."""
    step = lambda c, r: ((c[1] + r, c[0]), (c[0], c[1] * r))  # noqa: E731
    ends, rows = lax.scan(step, (x, 2 * x), jnp.arange(3.0), reverse=True)
    return jnp.concatenate([*ends, *rows[0], rows[1].sum(axis=0)], axis=-1)


def best_of(x):
    rows = jnp.stack([x, -x, 2 * x])
    return jnp.take_along_axis(rows, jnp.argmax(rows.sum(-1), 0)[None, :, None], 0)[0]


CASES = {
    "elementwise": lambda x: jnp.exp(-jnp.abs(x)) + jnp.log1p(x**2) - jnp.expm1(x) * jnp.sin(x) / jnp.cos(x) ** 4,
    "powers": lambda x: jnp.sqrt(x**2 + 1) + lax.rsqrt(x**2 + 2) + x**3 + (x**2 + 1) ** 0.3 + x**-2,
    "activations": lambda x: sum(
        f(x) for f in (jax.nn.sigmoid, jax.nn.softplus, jax.nn.mish, jax.nn.relu, jax.nn.silu)
    ),
    "layer norm": lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6),
    "choices": lambda x: jnp.where((x > 0) & (x < 1) | (x == 2), 1.0, 0.0) + jnp.clip(x, -0.5, 0.5) + jnp.sign(x),
    "constants": lambda x: x + jnp.eye(4)[1] + jnp.arange(40.0).reshape(10, 4)[3] + jnp.zeros_like(x),
    "shapes": lambda x: jnp.stack([x, 2 * x])[::-1].transpose(1, 0, 2)[:, 1, 1:3].repeat(2, axis=-1),
    "split": lambda x: jnp.concatenate(jnp.split(x, 2, axis=-1)[::-1], axis=-1),
    "sums": lambda x: jnp.stack([x.sum(-1), x.max(-1), x.min(-1), x.prod(-1)], axis=-1),
    "matrices": lambda x: jnp.einsum("bi,bj,jk->bk", x, x, jnp.ones((4, 3)) / 3),
    "heads": lambda x: jax.vmap(lambda w: x @ w)(jnp.arange(24.0).reshape(2, 4, 3)).min(axis=0),
    "products in a batch": lambda x: jnp.einsum("kbi,kbj->bij", jnp.stack([x, 1 - x]), jnp.stack([x, 2 + x])),
    "best of": best_of,
    "loop": loop,
    "history": history,
    "calls": lambda x: double(x) + jax.checkpoint(double)(x) + jax.grad(lambda y: jax.nn.gelu(y).sum())(x),
    "rows": lambda x: x.reshape(-1)[:, None].reshape(x.shape) + x.astype(jnp.int32).astype(jnp.float32),
    "uniform": lambda x: jnp.sin((jnp.zeros_like(x[..., :1]) + 2.0) * jnp.arange(3.0)) + 0 * x[..., :1],
}


@pytest.mark.parametrize("write", [in_numpy, in_onnx])
@pytest.mark.parametrize("name", CASES)
def test_operations(name, write):
    program = program_of(CASES[name])
    for size in (1, 5):
        x = np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)
        wanted, got = np.asarray(CASES[name](x)), write(program, x)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("write", [in_numpy, in_onnx])
def test_an_operation_without_translation_is_named(write):
    with pytest.raises(ConfigError, match="operation `sort`"):
        write(program_of(lambda x: jnp.sort(x)), np.zeros((1, 4), np.float32))


def test_names_of_arrays_cannot_become_code():
    name = "a'] + __import__('os').name + W['\n\"\x001\x01"
    program = program_of(lambda x: x)
    jaxpr = jax.make_jaxpr(lambda w, x: x * w)(jnp.ones(4), next(iter(program.inputs().values())))
    body = numpy_source.write(program._replace(jaxpr=jaxpr, weights={name: np.ones(4, np.float32)})).body
    assert repr(name) in body
    assert len(body.splitlines()) == 1
    one = eval(body.removeprefix("    return "), {"W": {name: np.ones(4)}, "observations": np.ones((1, 4))})
    np.testing.assert_array_equal(one, np.ones((1, 4)))


def several(key, x):
    """Draws at the top, in a loop, of many keys, and of each kind."""
    first, second, third = jax.random.split(key, 3)
    start = jax.random.normal(first, (2, *x.shape)).sum(axis=0)
    step = lambda c, k: (c + jax.random.normal(k, c.shape), None)  # noqa: E731
    moved = lax.scan(step, start, jax.random.split(second, 3))[0]
    many = jax.vmap(lambda k: jax.random.uniform(k, x.shape, minval=-2.0, maxval=3.0))(jax.random.split(third, 4))
    flat = jax.random.gumbel(key, (2 * x.shape[0], 1)).reshape(2, x.shape[0], 1)
    return x + moved + many.sum(axis=0) + flat[0] - flat[1]


def test_draws_become_columns_of_the_noise():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    key = jax.random.key(1)
    symbolic = jax.make_jaxpr(several)(key, jax.ShapeDtypeStruct((symbolic_batch(), 4), "float32"))
    columns = _columns(random_inputs.draws_of(symbolic.jaxpr))
    kinds = [(c.draw.kind, c.start, c.stop, c.draw.low, c.draw.high) for c in columns]
    assert kinds == [
        ("normal", 0, 8, None, None),
        ("normal", 8, 20, None, None),
        ("uniform", 20, 36, -2.0, 3.0),
        ("gumbel", 36, 38, None, None),
    ]
    closed, source = jax.make_jaxpr(several)(key, x), random_inputs.Recorder()
    (recorded,) = random_inputs.evaluate(closed, [key, x], source)
    np.testing.assert_array_equal(recorded, several(key, x))
    noise = np.concatenate([c.pack(np.asarray(d)) for c, d in zip(columns, source.drawn, strict=True)], axis=1)
    assert noise.shape == (3, 38)
    given = [column.unpack(noise) for column in columns]
    for one, other in zip(given, source.drawn, strict=True):
        np.testing.assert_array_equal(one, other)
    (replayed,) = random_inputs.evaluate(closed, [None, x], random_inputs.Replayer(given))
    np.testing.assert_allclose(replayed, recorded, rtol=1e-6)
    # Each row has its own noise.
    (changed,) = random_inputs.evaluate(
        closed, [None, x], random_inputs.Replayer([c.unpack(noise + np.eye(3, 38)) for c in columns])
    )
    assert (np.abs(changed - replayed).max(axis=1) > 0.1).all()


def test_draws_that_cannot_be_inputs_are_refused():
    key, batch = jax.random.key(0), jax.ShapeDtypeStruct((symbolic_batch(), 4), "float32")

    def refused(function, words):
        with pytest.raises(ConfigError, match=words):
            _columns(random_inputs.draws_of(jax.make_jaxpr(function)(key, batch).jaxpr))

    refused(lambda k, x: x + jax.random.normal(k, (4,)), "not one draw for each observation")
    refused(lambda k, x: x + jax.random.bits(k, x.shape).astype("float32"), "draws random numbers in `random_bits`")
    refused(lambda k, x: x + jax.random.uniform(k, x.shape, minval=x[0, 0]), "whose bounds it computes")
    body = lambda c: (c[0] + 1, c[1] + jax.random.normal(key, c[1].shape))  # noqa: E731
    refused(lambda k, x: lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1], "in `while`")


def test_sizes_are_linear_in_the_batch():
    size = symbolic_batch()
    assert [linear(each) for each in (3, size, 4 * size, 2 * size + 1)] == [(0, 3), (1, 0), (4, 0), (2, 1)]
    with pytest.raises(ConfigError, match="dimension"):
        linear(size * size)


def test_units_are_those_of_the_policy_and_stay_inside_the_bounds():
    low, high = (0.1, -3.0, 1e6), (0.3, 7.7, 1e6 + 3)
    spec = Spec((4,), 3, action_low=low, action_high=high)
    actions = np.random.default_rng(0).uniform(-1, 1, (100, 3)).astype(np.float32)
    actions[0], actions[1] = 1.0, -1.0
    got = np.asarray(jax.jit(partial(in_user_units, spec))(actions))
    np.testing.assert_allclose(got, spec.to_user_units(actions), rtol=3e-7, atol=1e-6)
    assert (got >= np.asarray(low, np.float32)).all()
    assert (got <= np.asarray(high, np.float32)).all()


def test_a_column_of_one_draw_is_only_reshaped():
    column = Column(random_inputs.Draw("normal", (1, symbolic_batch(), 2)), 1, 1, 0, 2)
    noise = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(column.unpack(noise), noise[None])
