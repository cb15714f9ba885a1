"""The benchmark of the policy server runs and gives a row for each number of clients."""

from __future__ import annotations

import json

import pytest
from benchmarks import serve


@pytest.mark.slow
def test_the_server_is_measured_against_the_policy(capsys):
    serve.main(
        ["--algo", "bc", "--size", "1x8", "--clients", "1", "4", "--rounds", "1", "--seconds", "0.5", "--json"]
    )
    result = json.loads(capsys.readouterr().out)
    assert [row["clients"] for row in result["served"]] == [1, 4]
    for row in result["served"]:
        assert row["p99_ms"] >= row["p50_ms"] > result["policy"]["p50_ms"] > 0
        assert row["ratio"] == pytest.approx(row["p50_ms"] / result["policy"]["p50_ms"])
    assert result["served"][0]["batch"] == 1
    assert 1 < result["served"][1]["batch"] <= 4
