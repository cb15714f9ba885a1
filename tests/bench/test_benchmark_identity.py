"""The digests that guard a rebuilding: what counts as a difference, and what they cover."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import identity

from fidec import algos

BEFORE = {"run/a": {"state": ["float32(2,) 11", "float32(2,) 22"], "train": ["33"]}, "run/b": {"state": ["44"]}}


@pytest.mark.parametrize(
    ("after", "code", "words"),
    [
        (BEFORE, 0, "2 of 2 cases are equal"),
        ({**BEFORE, "run/c": {}}, 0, "new        run/c"),
        ({"run/a": BEFORE["run/a"]}, 1, "gone       run/b"),
        ({**BEFORE, "run/b": {"state": ["45"]}}, 1, "DIFFERENT  run/b  state: 1 of 1"),
        ({**BEFORE, "run/b": {**BEFORE["run/b"], "train": ["3"]}}, 1, "DIFFERENT  run/b  train: 0 of 0"),
    ],
)
def test_a_difference_and_a_lost_case_fail(capsys, after, code, words):
    assert identity.compare(BEFORE, after, "abc") == code
    assert words in capsys.readouterr().out


def test_a_digest_depends_on_content_and_not_on_names():
    one, two = np.arange(3.0), np.ones((2, 2), np.float32)
    assert identity.digest({"a": one, "b": two}) == identity.digest({"x": two, "y": one})
    assert identity.digest(one) != identity.digest(one.astype(np.float32))
    assert identity.digest(one) != identity.digest(one + 1e-12)


@pytest.mark.parametrize("change", [lambda rows: rows[::-1], lambda rows: rows.at[0, 1].add(1e-6)])
def test_the_hash_of_a_batch_sees_order_and_single_bits(change):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32))
    assert identity._hash(rows) == identity._hash(rows + 0)
    assert identity._hash(rows) != identity._hash(change(rows))


def test_every_preset_and_every_method_with_a_frozen_flow_has_a_case():
    cases = identity.cases()
    for name in algos.names():
        for preset in ("recommended", *algos.get(name).presets):
            assert f"method/{name}-{preset}" in cases
        spec = identity.fidec.Spec((identity.OBSERVATION,), identity.ACTION)
        if algos.make(name, spec).propose is not None:
            assert f"run/frozen-{name}" in cases
