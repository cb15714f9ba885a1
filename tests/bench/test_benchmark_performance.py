"""The benchmarks of acting, starting and growth measure every figure. The figures themselves are not tested."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from benchmarks import export, growth, latency, startup

from fidec.errors import ConfigError


def test_latency(capsys):
    rows = latency.main(["--algos", "bc", "--sizes", "1x4", "--rounds", "2", "--calls", "20", "--bounds"])
    (row,) = rows
    assert all(row[f"{name}_us_p50"] <= row[f"{name}_us_p99"] for name in ("bare", "policy"))
    assert row["ratio_quartiles"][0] <= row["ratio"] <= row["ratio_quartiles"][1]
    head, rule, line = capsys.readouterr().out.splitlines()[-3:]
    assert head.count("|") == rule.count("|") == line.count("|") == 8  # seven columns, for a page in Markdown
    assert line.startswith("| bc ")


@pytest.mark.slow  # two exports, each compared in a process of its own
def test_export(capsys):
    (row,) = export.main(["--algos", "bc", "--sizes", "1x4", "--rounds", "2", "--calls", "20"])
    assert all(row[f"{name}_us_p50"] <= row[f"{name}_us_p99"] for name in ("policy", "onnx", "numpy"))
    assert row["policy_ratio"] == 1.0
    head, rule, line = capsys.readouterr().out.splitlines()[-3:]
    assert head.count("|") == rule.count("|") == line.count("|") == 8
    assert line.startswith("| bc ")


def test_a_size_is_layers_and_width():
    assert latency.hidden_of("3x128") == (128, 128, 128)
    for size in ("128", "3x", "axb"):
        with pytest.raises(ConfigError, match="LAYERSxWIDTH"):
            latency.hidden_of(size)


def test_the_exponent_is_the_power():
    values = (1, 2, 4, 10)
    figures = np.stack([np.array(values) ** power for power in (0.0, 1.0, 2.5)], axis=1)
    np.testing.assert_allclose(growth._slopes(values, figures), [0, 1, 2.5], atol=1e-12)


@pytest.mark.slow
def test_the_data_is_part_of_the_memory():
    small, large = (growth.Loop(growth.Point(4, 4, rows, 2, 1, 1), frozen=True) for rows in (10, 10_010))
    small.run(2)
    data = [sum(column.nbytes for column in jax.tree.leaves(each.source)) for each in (small, large)]
    assert large.bytes - small.bytes == pytest.approx(data[1] - data[0], rel=0.01)


@pytest.mark.slow  # two loops of each kind to compile, and a process
def test_growth(capsys):
    words = ["--axes", "samples", "--samples", "1", "2", "--repeats", "2", "--seconds", "0.01"]
    found = growth.main([*words, "--peak-rows", "500", "--peak-size", "1x8"])
    (row,), (peak,) = found["growth"], found["peak"]
    assert all(min(row[name]["ms"]) > 0 and len(row[name]["bytes"]) == 2 for name in growth.NAMES)
    assert 0 < peak["data_bytes"] < peak["before_bytes"] < peak["peak_bytes"]
    assert "| samples" in capsys.readouterr().out


@pytest.mark.slow  # six processes
def test_startup(capsys):
    startup.main(["--algos", "bc", "--size", "1x8", "--batch-size", "8", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["algo"] for row in rows] == ["fql", "bc"]
    assert rows[0]["ratio_to_fql"] == 1.0
    for row in rows:
        assert all(row[f"{start}_{part}"] > 0 for start in startup.STARTS for part in ("compile", "xla", "process"))
        assert row["second_xla"] < row["first_xla"]  # programs were read from the directory
