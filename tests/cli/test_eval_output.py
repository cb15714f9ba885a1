"""What `fidec train` and `fidec eval` print of an evaluation."""

from __future__ import annotations

import pytest

from fidec.cli.train import _means
from fidec.envs.evaluate import summarise
from fidec.envs.pool import Episode


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
