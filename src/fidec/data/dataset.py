"""`OfflineDataset`: transitions as flat arrays, with the episodes they came from.

    episode 0            | episode 1
    s0   s1   s2   s3    | s0   s1   s2        observations
    a0   a1   a2   a3    | a0   a1   a2        actions
    s1   s2   s3   s4    | s1   s2   s3        next_observations
    a1   a2   a3   a3    | a1   a2   a2        next_actions: the last one repeats
    0    0    0    1     | 0    0    1         terminals: a trajectory ends here, for any reason
    1    1    1    1     | 1    1    0         masks: 0 where the task ended, so there is no bootstrapping

Terminals and masks differ. A time limit ends a trajectory and leaves the mask at 1. In OGBench a trajectory continues
after success, so a mask may be 0 in its middle. Only masks enter the TD target.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fidec.data.disk_array import blocks, is_mapped
from fidec.data.statistics import moments_of
from fidec.errors import DataError
from fidec.parts import Observations, arrays_of, is_image, map_parts, named, rows_of

if TYPE_CHECKING:  # fidec.types imports jax, which data workers must not
    from fidec.types import Batch, Spec

STATE = "state"  # the part of an observation with all vectors, beside the parts of cameras
GIVEN = "sha256_as_given"  # in `info`: the hash of the data before a rule changed its rewards
_ARRAYS = (
    "observations",
    "actions",
    "rewards",
    "masks",
    "terminals",
    "next_observations",
    "next_actions",
    "episodes",
)


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """N transitions in time order. Build one with `dataset_from_arrays` or `load_dataset`, which check it.

    `observations` and `next_observations` are float32 (uint8 for images), or dictionaries of such arrays, whose names
    are sorted (parts). `actions` are float32 in [-1, 1],
    `rewards` and `masks` float32, `terminals` bool. Row i of `episodes` (E, 2) is [start, stop) of a
    trajectory. `action_low` and `action_high` are the user's own action bounds if they are not [-1, 1].
    Without rewards, `has_rewards` is False and `rewards` are zeros; only methods that use none can be trained.
    The arrays are read-only. Large observations and actions stay in their files: their columns are then `MappedRows`,
    which are indexed like arrays, and `mapped` is True.
    """

    observations: Observations
    actions: np.ndarray
    rewards: np.ndarray
    masks: np.ndarray
    terminals: np.ndarray
    next_observations: Observations
    next_actions: np.ndarray
    episodes: np.ndarray
    name: str
    source: str
    info: dict[str, Any] = field(default_factory=dict)
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    has_rewards: bool = True

    def __post_init__(self) -> None:
        rows = rows_of(self.observations)
        for key in _ARRAYS:
            for name, array in named(key, getattr(self, key)).items():
                if key != "episodes" and len(array) != rows:
                    raise DataError(f"{self.name}: '{name}' has {len(array)} rows, 'observations' has {rows}.")
            object.__setattr__(self, key, map_parts(_read_only, getattr(self, key)))
        if rows == 0 or not np.array_equal(self.episodes, episodes_of(self.terminals)):
            raise DataError(f"{self.name}: the episode index does not match the terminals.")

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        parts = ", ".join(f"{k} {a.shape[1:]} {a.dtype}" for k, a in named("observations", self.observations).items())
        return (
            f"OfflineDataset({self.name!r}, {self.size} transitions, {len(self.episodes)} episodes, {parts}, "
            f"actions {self.actions.shape[1:]}, source {self.source!r})"
        )

    @property
    def size(self) -> int:
        """Number of transitions."""
        return rows_of(self.observations)

    @property
    def nbytes(self) -> int:
        """Memory that all arrays take, or would take if they are mapped."""
        return sum(array.nbytes for array in self.arrays().values())

    @property
    def mapped(self) -> bool:
        """Whether observations, or some of their parts, stay on the disk until they are drawn."""
        return any(is_mapped(array) for array in arrays_of(self.observations))

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, those of parts as `observations/front`."""
        return {name: array for key in _ARRAYS for name, array in named(key, getattr(self, key)).items()}

    def column_names(self, key: str) -> list[str] | None:
        """What the columns of `actions`, or of the vectors in `observations`, are called, if the source says it."""
        vectors = ("observations", f"observations/{STATE}")
        names = self.info.get("action_names" if key == "actions" else "observation_names" if key in vectors else "")
        return names if names and self.arrays()[key].shape[1:] == (len(names),) else None

    @property
    def spec(self) -> Spec:
        """What a method needs to know about this data."""
        from fidec.types import Part, Spec

        def part(name: str, array: np.ndarray) -> Part:
            return Part(name, tuple(array.shape[1:]), str(array.dtype))

        spec = Spec((), self.actions.shape[1], action_low=self.action_low, action_high=self.action_high)
        if isinstance(self.observations, dict):
            return replace(spec, parts=tuple(part(name, array) for name, array in self.observations.items()))
        return spec.replace_inputs([part("", self.observations)])

    @cached_property
    def observation_statistics(self) -> Any:
        """(mean, standard deviation) of each observation column; a constant column has the deviation 1.

        Of observations with parts a dictionary by name, with the vectors only.
        """
        if not isinstance(self.observations, dict):
            return _mean_and_std(self.observations)
        vectors = {name: array for name, array in self.observations.items() if not is_image(array.shape[1:])}
        return map_parts(_mean_and_std, vectors)

    @cached_property
    def sha256(self) -> str:
        """Hash of the content: equal arrays have equal hashes, from any file.

        Data with other rewards by a rule (`fidec.data.transforms`) has the hash of the rewards that were given.
        """
        if GIVEN in self.info:
            return self.info[GIVEN]
        digest = hashlib.sha256()
        arrays = {key: array for key, array in self.arrays().items() if key != "rewards" or self.has_rewards}
        if self.action_low is not None:
            arrays["action_low"] = np.asarray(self.action_low, np.float64)
            arrays["action_high"] = np.asarray(self.action_high, np.float64)
        for key, array in arrays.items():
            digest.update(f"{key}:{array.dtype.str}:{array.shape};".encode())
            for block in blocks(array):
                digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def batch(self, discount: float | None = None) -> Batch:
        """All transitions as one `fidec.types.Batch` (no copy), with returns if a discount is given."""
        from fidec.types import Batch

        columns = {key: getattr(self, key) for key in Batch._fields if key not in Batch._field_defaults}
        return Batch(**columns, returns=None if discount is None else self.returns(discount))

    def returns(self, discount: float) -> np.ndarray:
        """The discounted return from every row on: G = r + gamma m G', float32.

        A trajectory that was cut by a time limit is continued with its last reward for ever, G = r / (1 - gamma). So
        the return of a failure at -1 per step does not depend on how close the time limit is.
        """
        if not 0 <= discount < 1:
            raise DataError(f"{self.name}: returns need a discount in [0, 1), not {discount}.")
        return returns_of(self.rewards, self.masks, self.terminals, discount)


def _read_only(array: Any) -> Any:
    """A view that cannot be written, so that the hash stays true; mapped rows are read-only."""
    if isinstance(array, np.ndarray):
        array = array.view()
        array.setflags(write=False)
    return array


def _mean_and_std(array: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    found = moments_of(blocks(array))
    return tuple(found.mean.tolist()), tuple(found.std.tolist())


def returns_of(rewards: np.ndarray, masks: np.ndarray, terminals: np.ndarray, discount: float) -> np.ndarray:
    """`OfflineDataset.returns`, for columns in time order."""
    returns = rewards.astype(np.float64)
    decay = discount * masks.astype(np.float64)
    carry = np.where(terminals, 0.0, decay)
    returns += np.where(terminals, decay * returns / (1.0 - discount), 0.0)
    # Invariant: G_i = returns_i + carry_i G_(i + ahead). Each round doubles `ahead`, until nothing is carried.
    ahead = 1
    while carry.any():
        returns[:-ahead] += carry[:-ahead] * returns[ahead:]
        carry[:-ahead] *= carry[ahead:]
        ahead *= 2
    return returns.astype(np.float32)


def episodes_of(terminals: np.ndarray) -> np.ndarray:
    """(E, 2) int64, [start, stop) of every trajectory; the last row must be an end."""
    stops = np.flatnonzero(terminals) + 1
    if len(stops) == 0 or stops[-1] != len(terminals):
        raise DataError("the last row of a data set must end a trajectory.")
    starts = np.concatenate([[0], stops[:-1]])
    return np.stack([starts, stops], axis=1).astype(np.int64)
