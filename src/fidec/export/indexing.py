"""What an equation of `gather` or `dynamic_slice` means, in terms that both translations share."""

from __future__ import annotations

from typing import Any

from fidec.export.walk import Constant, Value


def fixed_slice(operand: Value, indices: Value, parameters: Any) -> tuple[list[tuple[int, Any]], tuple[int, ...]]:
    """A gather of one part at a known place: (start, size) for each axis, and the axes that are dropped.

    KeyError if it is another kind of gather.
    """
    numbers = parameters["dimension_numbers"]
    if not isinstance(indices, Constant) or len(indices.shape) != 1 or numbers.operand_batching_dims:
        raise KeyError("gather")
    starts = dict(zip(numbers.start_index_map, indices.whole().tolist(), strict=True))
    ranges = [(int(starts.get(axis, 0)), size) for axis, size in enumerate(parameters["slice_sizes"])]
    kept = len(ranges) - len(numbers.collapsed_slice_dims)
    if numbers.offset_dims != tuple(range(kept)) or any(start < 0 for start, _ in ranges):
        raise KeyError("gather")
    return ranges, tuple(numbers.collapsed_slice_dims)


def taken(operand: Value, indices: Value, parameters: Any) -> tuple[int, list[int]]:
    """A gather that is `np.take` with known indices: the axis and the indices. KeyError if it is another kind."""
    numbers = parameters["dimension_numbers"]
    if not isinstance(indices, Constant) or len(indices.shape) != 2 or len(numbers.start_index_map) != 1:
        raise KeyError("gather")
    (axis,) = numbers.start_index_map
    others = tuple(a for a in range(len(operand.shape)) if a != axis)
    whole = all(parameters["slice_sizes"][a] == operand.shape[a] for a in others)
    plain = numbers.collapsed_slice_dims == (axis,) and numbers.offset_dims == others
    places = indices.whole()[:, 0].tolist()
    if not (whole and plain) or numbers.operand_batching_dims or min(places, default=0) < 0:
        raise KeyError("gather")
    return axis, places


def along_axis(operand: Value, indices: Value, parameters: Any) -> int:
    """The axis of a gather that is `np.take_along_axis` with indices of size 1 along the last axis.

    KeyError if it is another kind of gather.
    """
    numbers, last = parameters["dimension_numbers"], len(operand.shape) - 1
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        raise KeyError("gather")
    (axis,) = numbers.start_index_map
    batched = tuple(a for a in range(last) if a != axis)
    aligned = numbers.operand_batching_dims == numbers.start_indices_batching_dims == batched
    if not aligned or numbers.offset_dims != (last,) or len(indices.shape) != last + 1 or indices.shape[-1] != 1:
        raise KeyError("gather")
    return axis
