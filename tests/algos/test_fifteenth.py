"""A new built-in method is one file and its page; nothing else has to be changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import jax
import pytest

import fidec
import fidec.algos
from fidec import algos, cli
from helpers.algorithms import equal, make_batch


@pytest.fixture
def median(tmp_path, monkeypatch):
    """`fidec.algos` with a further module: behaviour cloning under another name, with another loss."""
    source = Path(fidec.algos.__file__).with_name("bc.py").read_text()
    source = source.replace('"bc"', '"median"').replace("cloning with a Gaussian", "cloning by L1")
    source = source.replace("-likelihood.mean()", "jnp.abs(batch.actions - mean).mean()")
    (tmp_path / "median.py").write_text(source)
    monkeypatch.setattr(fidec.algos, "__path__", [*fidec.algos.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield "median"
    sys.modules.pop("fidec.algos.median", None)


def test_the_register_lists_makes_and_trains_it(median, tmp_path, capsys):
    assert median in algos.names()
    algorithm = algos.make(median, fidec.Spec((4,), 2), hidden=(8,))
    state = algorithm.init(jax.random.key(0))
    after, metrics = algorithm.update(state, make_batch(), jax.random.key(1))
    assert metrics["loss"] > 0
    assert not equal(after.params, state.params)
    batch = make_batch(rows=32)
    data = fidec.dataset_from_arrays(*(jax.device_get(batch[i]) for i in range(3)))
    fidec.fit(data, tmp_path / "run", algo=median, steps=2, options={"hidden": (8,)}, quiet=True)
    assert fidec.load_policy(tmp_path / "run").algo == median
    assert cli.main(["algos"]) == 0
    assert "behaviour cloning by L1" in capsys.readouterr().out
    assert cli.main(["algos", median]) == 0
    assert "docs/methods/median.md" in capsys.readouterr().out


def test_the_battery_and_the_documentation_take_it_up(median, monkeypatch):
    """Both read the register: a fresh import of the battery has a case for it, and its page is expected."""
    battery = sys.modules.get("test_battery")
    sys.modules.pop("test_battery", None)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    try:
        cases = [case.values[0] for case in importlib.import_module("test_battery").all_cases()]
    finally:
        sys.modules.pop("test_battery", None)
        if battery is not None:
            sys.modules["test_battery"] = battery
    assert {"median", "median/pixels"} <= set(cases)
