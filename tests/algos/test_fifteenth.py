"""A new built-in method is one file and its page; nothing else has to be changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.mark.slow
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
    assert "--algo median" in capsys.readouterr().out


def fresh(monkeypatch, module: str) -> ModuleType:
    """A test module as it is imported while the method exists."""
    path = Path(__file__).parents[1] / module
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, path.name, raising=False)
    return importlib.import_module(path.name)


def test_the_battery_and_the_tests_of_the_pages_include_it(median, monkeypatch, tmp_path):
    cases = [case.values[0] for case in fresh(monkeypatch, "algos/test_battery").all_cases()]
    assert {"median", "median/pixels"} <= set(cases)
    docs = fresh(monkeypatch, "cli/test_docs")
    assert median in docs.METHODS
    with pytest.raises(FileNotFoundError, match="median"):
        docs.test_a_page_has_every_option_and_every_metric_of_its_method_and_no_others(median)
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "median.md").write_text(docs.page_of("bc"))
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    docs.test_a_page_has_every_option_and_every_metric_of_its_method_and_no_others(median)
