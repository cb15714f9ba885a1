"""Statistics of the columns of data: what normalises observations, and what a deployed policy is compared with.

The latter are stored in the policy (`fidec.train.session`) and read by the monitor of `fidec serve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fidec.data.disk_array import block_rows, blocks
from fidec.parts import Observations, arrays_of, is_image, map_parts, named

if TYPE_CHECKING:
    from fidec.data.dataset import OfflineDataset


class Moments(NamedTuple):
    """Of each column. A constant column has the deviation 1, so that one can divide by it."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray


def moments_of(blocks: Iterable[np.ndarray]) -> Moments:
    """The moments of rows that come in blocks, in float64. Each block is read once.

    Means and sums of squares of two blocks are merged by the formula of Chan, Golub and LeVeque (1979). It does not
    subtract large numbers from each other as a sum of squares does.
    """
    rows, mean, squares, low, high = 0, np.zeros(()), np.zeros(()), np.full((), np.inf), np.full((), -np.inf)
    for block in blocks:
        block_mean = block.sum(axis=0, dtype=np.float64) / len(block)
        block_squares = np.square(block - block_mean).sum(axis=0)
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        if not rows:
            rows, mean, squares = len(block), block_mean, block_squares
            continue
        step, total = block_mean - mean, rows + len(block)
        mean = mean + step * (len(block) / total)
        squares = squares + block_squares + np.square(step) * (rows * len(block) / total)
        rows = total
    std = np.sqrt(squares / rows)
    std = np.where(std > 1e-6 * np.abs(mean), std, 1.0)  # rounding in float32 is not variation
    return Moments(mean, std, low, high)


FRAMES = 4096  # images that are read of a data set, at equal distances: all of them may be many gigabytes
AT_BOUND = 0.999  # of the way from the middle of the bounds; data never lies on a bound exactly


def features_of(observations: Observations, newest: Any = None) -> np.ndarray:
    """(rows, features), float64: vectors as they are, of images the mean of each channel; all parts side by side.

    Of stacked observations only the newest counts: `newest` is its width along the last axis, for each part.
    """
    arrays = arrays_of(observations)
    widths = [array.shape[-1] for array in arrays] if newest is None else arrays_of(newest)
    return np.concatenate([_features_of(array, width) for array, width in zip(arrays, widths, strict=True)], axis=1)


def _features_of(array: np.ndarray, newest: int) -> np.ndarray:
    array = array[..., array.shape[-1] - newest :]
    if is_image(array.shape[1:]):
        return array.mean(axis=(1, 2), dtype=np.float64)
    return array.reshape(len(array), -1).astype(np.float64)


def distances(features: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The root mean square of the z-scores of each row; about 1 for the data itself."""
    return np.sqrt(np.square((features - mean) / std).mean(axis=-1))


def data_statistics(datasets: Sequence[OfflineDataset]) -> dict[str, Any]:
    """Statistics of all rows of these data sets, for JSON. The same data gives the same numbers.

    Observations and actions have `mean`, `std`, `low` and `high` for each dimension, in the user's units. `distance`
    has quantiles of `distances` of the observations. If the data says them, both have the
    `names` of their columns, those of parts in a dictionary, and actions their `kind`, absolute or delta. `at_bound`
    is the share of action dimensions at a bound.
    """
    spec = datasets[0].spec
    observations = _columns(_features(datasets))
    mean, std = np.asarray(observations["mean"]), np.asarray(observations["std"])
    far = np.concatenate([distances(block, mean, std) for block in _features(datasets)])
    edge = sum(int((np.abs(block) > AT_BOUND).sum()) for each in datasets for block in blocks(each.actions))
    keys = {key: key.partition("/")[2] for key in named("observations", datasets[0].observations)}
    names = {part: found for key, part in keys.items() if (found := datasets[0].column_names(key)) is not None}
    said = {"names": datasets[0].column_names("actions"), "kind": datasets[0].info.get("action_kind")}
    return {
        "rows": sum(each.size for each in datasets),
        "observations": observations | ({"names": names.get("", names)} if names else {}),
        "distance": dict(zip(("p50", "p99", "max"), np.quantile(far, (0.5, 0.99, 1.0)).tolist(), strict=True)),
        "actions": _columns(
            spec.to_user_units(block).astype(np.float64) for each in datasets for block in blocks(each.actions)
        )
        | {name: value for name, value in said.items() if value is not None},
        "at_bound": edge / sum(each.actions.size for each in datasets),
    }


def _features(datasets: Sequence[OfflineDataset]) -> Iterator[np.ndarray]:
    """The features of all rows, or of some rows if there are images, a few at a time."""
    for each in datasets:
        rows = np.arange(each.size)
        if each.spec.images and each.size > FRAMES:
            rows = np.linspace(0, each.size - 1, FRAMES).astype(np.int64)
        step = min(block_rows(array) for array in arrays_of(each.observations))
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step]
            yield features_of(map_parts(lambda array, chosen=chosen: array[chosen], each.observations))


def _columns(blocks: Iterable[np.ndarray]) -> dict[str, list[float]]:
    """Mean, standard deviation and range of each column, for JSON."""
    return {name: value.tolist() for name, value in moments_of(blocks)._asdict().items()}
