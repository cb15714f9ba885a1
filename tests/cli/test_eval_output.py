"""What `fidec train` and `fidec eval` print of an evaluation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidec.cli.evaluate import print_comparison
from fidec.cli.train import _means
from fidec.envs.evaluation import Episode, summarise
from fidec.envs.factory import EnvFactory
from fidec.errors import ConfigError
from fidec.train import evaluation as evaluations
from fidec.types import Spec


def evaluation(*episodes: tuple[float, float | None], score: float | None = None, failed: int = 0):
    """A row of eval.jsonl, of episodes with these returns and successes."""
    rows = [Episode(k, k, 0, "ok", total, 10, success) for k, (total, success) in enumerate(episodes)]
    rows += [Episode(len(rows) + k, 0, 0, "hung", 0.0, 3, None) for k in range(failed)]
    return {
        "step": 5,
        **{f"evaluation/{name}": value for name, value in (summarise(rows) | {"score": score}).items()},
    }


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (evaluation((-9.0, 1.0), (-9.0, 0.0), score=50.0), ["success 0.50 [0.09, 0.91] over 2 episodes"]),
        (evaluation((1.0, None), (3.0, None), score=2.0), ["return 2.00 [1.00, 3.00] over 2 episodes"]),
        (evaluation((3.0, None), score=3.0), ["return 3.00 over 1 episode"]),
        (
            evaluation((1.0, 1.0), (3.0, 1.0), score=12.34, failed=1),
            [
                "success 1.00 [0.34, 1.00] over 2 episodes",
                "score 12.3, return 2.00 [1.00, 3.00]",
                "1 episode failed and is not in the averages",
            ],
        ),
        (evaluation(failed=2), ["2 episodes failed and are not in the averages"]),
    ],
)
def test_the_report_of_a_training_has_intervals(row, lines):
    assert _means(row) == lines


class FakeEvaluator:
    """Two episodes, better ones unless they are the base policy's."""

    def __init__(self, *_: Any, **__: Any): ...

    def __enter__(self):
        return self

    def __exit__(self, *_: object): ...

    def __call__(self, algorithm, state, step, seed, *, base, **_):
        rows = [Episode(k, k, 0, "ok", k + 2.0 * (not base), 10, None) for k in range(2)]
        return summarise(rows) | {"score": None}, rows, 0.0


def assessed(act_with_base: Any) -> evaluations.PolicyEvaluation:
    policy: Any = SimpleNamespace(
        algo="some", algorithm=SimpleNamespace(act_with_base=act_with_base), spec=Spec((3,), 2), state=None, info={}
    )
    env: Any = EnvFactory("Own-v0", lambda mode: None, lambda summary: None)  # type: ignore[arg-type]
    return evaluations.PolicyEvaluation(Path("run"), policy, env, 0, 1, 60.0)


def test_only_a_method_that_refines_a_base_policy_has_a_refined_one(monkeypatch, capsys):
    monkeypatch.setattr(evaluations, "Evaluator", FakeEvaluator)
    clone = assessed(None)
    result = clone.evaluate(2)
    assert {"base", "refined", "policy"} & set(result) == set(result["episodes"]) == {"policy"}
    print_comparison(result)
    row = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    assert row == "policy - 2.50 [2.00, 3.00] 10 2 0"
    with pytest.raises(ConfigError, match=r"some has no base policy to compare with.*without --base"):
        clone.evaluate(2, base=True)

    both = assessed(lambda: None).evaluate(2, base=True)
    assert {"base", "refined", "policy"} & set(both) == set(both["episodes"]) == {"base", "refined"}
    print_comparison(both)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["base", "refined"]
    assert lines[-1] == "gain in return, paired: +2.00 [+2.00, +2.00]"
