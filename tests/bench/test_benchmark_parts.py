"""`python -m benchmarks.parts`: scores, what is played again, errors, and the printed table."""

from __future__ import annotations

import json

import pytest
from benchmarks import parts

from fidec.errors import ConfigError, DataError, RunError


@pytest.mark.parametrize(("returned", "score"), [(-910.0, 0.0), (-150.0, 100.0), (-530.0, 50.0)])
def test_a_return_is_scored_between_its_references(returned, score):
    assert parts.score("pendulum", {"status": "ok", "return": returned}) == score
    assert parts.score("pendulum", {"status": "crashed", "return": returned}) is None


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that are run; training makes a finished run, an evaluation has two episodes."""
    seen = []

    def run(*words: str) -> str:
        seen.append(words)
        rows = [{"status": "ok", "return": -530.0, "episode": number} for number in (1, 0)]
        return json.dumps({"episodes": {"refined": rows}})

    monkeypatch.setattr(parts, "fidec", run)
    monkeypatch.setattr(parts, "versions", lambda directory: {"commit": "0"})
    return seen


def test_only_ways_without_a_row_are_played(commands, tmp_path):
    path = tmp_path / "rows.jsonl"
    parts.measure("pendulum", "one step", 0, ("--data", "x"), tmp_path, path)
    assert [words[0] for words in commands] == ["train", "eval", "eval", "eval"]
    assert "--flow" in commands[0]
    kept = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in kept[:2]))
    commands.clear()
    parts.measure("pendulum", "one step", 0, ("--data", "x"), tmp_path, path)
    assert [words[0] for words in commands if words[0] == "eval"] == ["eval"]
    header, lines = parts.table(map(json.loads, path.read_text().splitlines()))
    assert header == ("arm", "played", "pendulum")
    assert lines[0] == ("one step", "as trained", "50")


def test_wrong_words_are_named_and_failures_are_not_hidden(monkeypatch, tmp_path):
    words = ["--work", str(tmp_path), "--rows", str(tmp_path / "rows.jsonl")]
    with pytest.raises(ConfigError, match="no task matches walker"):
        parts.main([*words, "--tasks", "walker"])
    with pytest.raises(ConfigError, match="no arm 'wild'"):
        parts.main([*words, "--arms", "wild"])
    with pytest.raises(DataError, match=r"needs --hands, a directory with door-expert\.npz"):
        parts.main([*words, "--tasks", "door-expert-v1"])

    def fails(*args):
        raise RunError("no space")

    monkeypatch.setattr(parts, "provide", lambda *args: ())
    monkeypatch.setattr(parts, "measure", fails)
    with pytest.raises(RunError, match=r"1 failed.*pendulum nats seed 1"):
        parts.main([*words, "--tasks", "pendulum", "--seeds", "1"])
