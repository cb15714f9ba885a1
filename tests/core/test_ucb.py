"""The bandit on arms whose means are known."""

from __future__ import annotations

import numpy as np
import pytest

from fidec import bandit

NAN = float("nan")
# A clone, ten candidates of no use and one that is better.
SUCCESS = [0.3, *([0.2, 0.3, 0.1, 0.3, 0.2] * 2), 0.8]
RETURNS = [0.0, *([-2.0, 0.0, 0.4, -2.0, 0.2] * 2), 1.2]


def uniform(scores: bandit.Scores) -> int:
    return int(np.argmin([len(each) for each in scores]))


def simulate(means, pulls, seed, *, noise=None, choose=bandit.next_arm, batch=1, **how) -> bandit.Course:
    """Bernoulli arms, or Gaussian ones that share half of the variance of each pull, as seeded episodes do."""
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(size=pulls), rng.normal(size=(len(means), pulls))
    played: list[list[float]] = [[] for _ in means]

    def pull(arm, first):
        for k in range(first, first + batch):
            draw = means[arm] + (noise or 0.0) * (shared[k] + own[arm, k]) / np.sqrt(2)
            played[arm].append(float(rng.random() < means[arm]) if noise is None else draw)
        return played

    return bandit.play(pull, len(means), pulls, choose=choose, batch=batch, **how)


def regret(means, course: bandit.Course) -> float:
    return float(sum((max(means) - mean) * len(own) for mean, own in zip(means, course.scores, strict=True)))


@pytest.mark.parametrize(("means", "noise"), [(SUCCESS, None), (RETURNS, 1.5)], ids=["successes", "returns"])
def test_the_best_arm_is_found_more_often_and_with_less_regret_than_by_equal_shares(means, noise):
    best, times = len(means) - 1, 30
    ucb = [simulate(means, 48, seed, noise=noise) for seed in range(times)]
    equal = [simulate(means, 48, seed, noise=noise, choose=uniform) for seed in range(times)]
    shares = [np.mean([course.arm == best for course in courses]) for courses in (ucb, equal)]
    assert shares[0] >= shares[1] + 0.2
    assert np.mean([regret(means, each) for each in ucb]) < 0.8 * np.mean([regret(means, each) for each in equal])


def test_equal_arms_give_the_safe_one():
    same = [simulate([0.5] * 6, 60, seed, noise=1.0, safe=2) for seed in range(20)]
    assert np.mean([course.arm < 2 for course in same]) >= 0.6  # by chance a third


def test_arms_that_are_the_same_in_every_pull_give_the_first():
    path, counts = np.random.default_rng(0).normal(size=40), [0] * 4

    def pull(arm, first):
        counts[arm] = first + 1
        return [path[:count].tolist() for count in counts]

    course = bandit.play(pull, 4, 30)  # 30 pulls are not equal shares: the means differ
    assert len({len(own) for own in course.scores}) > 1
    assert {moment.arm for moment in course.history} == {0}


def test_scores_are_scaled_by_the_range_seen_and_failures_count_as_the_lowest():
    first, second = bandit.scaled([[-3.0, NAN], [1.0, -1.0]])
    assert first.tolist() == [0.0, 0.0]
    assert second.tolist() == [1.0, 0.5]
    assert [each.tolist() for each in bandit.scaled([[2.0], [], [2.0]])] == [[0.0], [], [0.0]]
    assert bandit.recommend([[0.4, 0.5, 0.4], [NAN, 0.9, NAN]]) == 0
    assert bandit.next_arm([[0.1], [], []]) == 1


def test_a_lucky_pull_is_not_recommended_and_a_safe_arm_only_if_it_is_about_as_good():
    steady = [0.6, 0.7, 0.5, 0.6, 0.6, 0.7]
    assert bandit.recommend([[0.0] * 6, steady, [1.0, 1.0]], safe=1) == 1  # two pulls are less than half of six
    assert bandit.recommend([[0.6, 0.5, 0.6, 0.7, 0.5, 0.8], steady], safe=1) == 0
    assert bandit.recommend([[0.6, 0.5, 0.6, 0.7, 0.5, 0.8], [0.7, 0.6, 0.7, 0.8, 0.5, 0.9]], safe=1) == 1
    assert bandit.recommend([[0.6, 0.5, 0.6], [0.6, 0.6, 0.6]], safe=0) == 1
    with pytest.raises(ValueError, match="no arm was pulled"):
        bandit.recommend([[], []])


def test_the_course_is_the_same_again_and_counts_batches():
    once, again = (simulate(SUCCESS, 40, 3, batch=2) for _ in range(2))
    assert once == again
    assert [moment.pulls for moment in once.history] == list(range(2, 41, 2))
    assert once.history[-1].arm == once.arm
    assert once.history[-1].mean == pytest.approx(np.mean(once.scores[once.arm]))
    assert all(len(own) % 2 == 0 for own in once.scores)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_best_safe_arm_gets_its_pairs_at_the_end(batch):
    means = [-9.0, -8.0, 0.0, 0.1]
    starved, paired = (simulate(means, 40, 0, noise=0.1, safe=2, pairs=pairs, batch=batch) for pairs in (0, 6))
    assert [len(own) for own in starved.scores[:2]] == [batch, batch]
    assert [len(own) for own in paired.scores[:2]] == [batch, 6]
    assert sum(map(len, paired.scores)) == 40
    few = simulate(means, 4, 0, noise=0.1, safe=2, pairs=6)  # an arm without a pull comes first
    assert [len(own) for own in few.scores] == [1, 1, 1, 1]
