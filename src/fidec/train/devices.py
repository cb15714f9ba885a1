"""Several devices: the rows of a batch are split over them, and the critics if asked, or each run has its own.

Between dispatches the carry of a run is on the first device, whole. So checkpoints, logs and evaluations know nothing
of devices, and a run continues on any number of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from fidec.data.batches import StepBatches
from fidec.errors import ConfigError
from fidec.nn import of_heads
from fidec.train.config import RunConfig

AXIS = "devices"


class Place(NamedTuple):
    """Where a program runs: the sharding of the rows of a chunk, of the heads of critics, and of everything else.

    None leaves arrays where they are, on JAX's default device. Without a sharding of their own, heads are everything
    else.
    """

    rows: Sharding | None = None
    whole: Sharding | None = None
    heads: Sharding | None = None

    def put(self, tree: Any) -> Any:
        """The arrays, whole on each device but for the heads of critics that are split."""
        if self.heads is None:
            return _put(tree, self.whole)
        return jax.tree.map(_put, tree, self._shardings(tree))

    def put_chunk(self, chunk: StepBatches) -> StepBatches:
        return chunk._replace(rows=_put(chunk.rows, self.rows))

    def take(self, tree: Any) -> Any:
        """What was computed from the arrays of `put`, on the first device of this process."""
        if isinstance(self.whole, SingleDeviceSharding):
            return jax.device_put(tree, jax.local_devices()[0])
        return tree if self.whole is None else jax.tree.map(self._first, tree)

    def example(self, chunk: StepBatches) -> StepBatches:
        """The shapes of a chunk, for lowering."""
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.rows), chunk.rows)
        return chunk._replace(rows=rows)

    def constrain(self, tree: Any) -> Any:
        """Inside compiled code: the arrays are where `put` would put them."""
        return tree if self.whole is None else jax.lax.with_sharding_constraint(tree, self._shardings(tree))

    def _shardings(self, tree: Any) -> Any:
        """The sharding of each array, or one for all."""
        if self.heads is None:
            return self.whole
        return jax.tree.map_with_path(lambda path, _: self.heads if of_heads(path) else self.whole, tree)

    def _first(self, leaf: jax.Array) -> jax.Array:
        """The array on the first device of this process. Parts are gathered, one array at a time."""
        if not leaf.sharding.is_fully_replicated:
            leaf = jax.jit(_same, out_shardings=self.whole)(leaf)
        return leaf.addressable_data(0)


HERE = Place()


def _same(leaf: jax.Array) -> jax.Array:
    return leaf


def _put(tree: Any, sharding: Sharding | None) -> Any:
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put(leaf: Any) -> jax.Array:
        """The part of this process. All processes have the same array."""
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree)


def places_of(devices: int | None, runs: int, split_critics: bool = False) -> list[Place]:
    """Where one run is trained: on one device, or split over several. Several runs take all devices in turn."""
    found = jax.local_devices()
    if runs == 1:
        alone = devices in (None, 1) and jax.process_count() == 1
        return [HERE if alone else spread_over(devices or 1, split_critics)]
    if len(found) == 1:
        return [HERE]
    return [Place(*[SingleDeviceSharding(device)] * 2) for device in found[:runs]]


def spread_over(devices: int, split_critics: bool = False) -> Place:
    """One program on this many devices of each process, each with its part of the rows, and of the critics if split.

    A device that has some of the critics computes them for all rows, so their gradients need no sum over devices.
    """
    every = [[each for each in jax.devices() if each.process_index == i] for i in range(jax.process_count())]
    mesh = Mesh(np.array([device for own in every for device in own[:devices]]), (AXIS,))
    rows, whole, heads = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, AXIS), (), (AXIS,)))
    return Place(rows, whole, heads if split_critics else None)


def check_devices(config: RunConfig, runs: int = 1) -> None:
    """Raise if the run cannot be trained on so many devices."""
    count, processes = config.devices or 1, jax.process_count()
    total = count * processes
    if config.split_critics:
        _check_critics(config, total)
    if total == 1:
        return
    if runs > 1:
        raise ConfigError(
            "--devices and --coordinator split one run. Several seeds are spread over all devices that JAX sees: "
            "leave them out, and hide devices with CUDA_VISIBLE_DEVICES"
        )
    found = jax.local_devices()
    if count > len(found):
        kinds = ", ".join(sorted({device.device_kind for device in found}))
        raise ConfigError(f"--devices {count}: JAX sees {len(found)} here ({kinds}). Ask for at most that many")
    if config.batch_size % total:
        near = max(total, round(config.batch_size / total) * total)
        where = f"--devices {count}" + (f" of {processes} processes" if processes > 1 else "")
        raise ConfigError(
            f"--batch-size {config.batch_size} cannot be split over {where}: expected a multiple of {total}, such as "
            f"{near}"
        )


def _check_critics(config: RunConfig, devices: int) -> None:
    if devices == 1:
        raise ConfigError("--split-critics splits them over several devices: give --devices, or leave it out")
    critics = getattr(config.options, "critics", 0)
    if not critics or critics % devices:
        found = f"{config.algo} has {critics or 'no'} critics"
        raise ConfigError(
            f"--split-critics: {found}, expected a multiple of the {devices} devices. Change --algo.critics or "
            "--devices, or leave it out"
        )
