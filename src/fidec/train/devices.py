"""Several devices: the rows of a batch are split over them, or each run of several has its own.

Between dispatches the carry of a run is on the first device, whole. So checkpoints, logs and evaluations know nothing
of devices, and a run continues on any number of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from fidec.data.feed import Chunk
from fidec.errors import ConfigError
from fidec.train.config import RunConfig

AXIS = "devices"


class Place(NamedTuple):
    """Where a program runs: the sharding of the rows of a chunk, and of everything else.

    None leaves arrays where they are, on JAX's default device.
    """

    rows: Sharding | None = None
    whole: Sharding | None = None

    def put(self, tree: Any) -> Any:
        """The arrays, whole on each device."""
        return jax.device_put(tree, self.whole)

    def put_chunk(self, chunk: Chunk) -> Chunk:
        return chunk._replace(rows=jax.device_put(chunk.rows, self.rows))

    def take(self, tree: Any) -> Any:
        """The arrays of `put`, or what was computed from them, on the first device again."""
        return tree if self.whole is None else jax.device_put(tree, jax.local_devices()[0])

    def example(self, chunk: Chunk) -> Chunk:
        """The shapes of a chunk, for lowering."""
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.rows), chunk.rows)
        return chunk._replace(rows=rows)

    def constrain(self, tree: Any) -> Any:
        """Inside compiled code: the arrays are whole on each device."""
        return tree if self.whole is None else jax.lax.with_sharding_constraint(tree, self.whole)


HERE = Place()


def places_of(devices: int | None, runs: int) -> list[Place]:
    """Where one run is trained: on one device, or split over several. Several runs take all devices in turn."""
    found = jax.local_devices()
    if runs == 1:
        return [HERE if devices in (None, 1) else split_over(found[:devices])]
    if len(found) == 1:
        return [HERE]
    return [Place(*[SingleDeviceSharding(device)] * 2) for device in found[:runs]]


def split_over(devices: list[jax.Device]) -> Place:
    """One program on all these devices, each with its part of the rows."""
    mesh = Mesh(np.array(devices), (AXIS,))
    return Place(NamedSharding(mesh, PartitionSpec(None, AXIS)), NamedSharding(mesh, PartitionSpec()))


def check_devices(config: RunConfig, runs: int = 1) -> None:
    """Raise if the run cannot be trained on so many devices."""
    count = config.devices
    if count is None:
        return
    if runs > 1:
        raise ConfigError(
            "--devices splits one run. Several seeds are spread over all devices that JAX sees: leave it out, and "
            "hide devices with CUDA_VISIBLE_DEVICES"
        )
    found = jax.local_devices()
    if count > len(found):
        kinds = ", ".join(sorted({device.device_kind for device in found}))
        raise ConfigError(f"--devices {count}: JAX sees {len(found)} here ({kinds}). Ask for at most that many")
    if config.batch_size % count:
        near = max(count, round(config.batch_size / count) * count)
        raise ConfigError(
            f"--batch-size {config.batch_size} cannot be split over --devices {count}: expected a multiple of "
            f"{count}, such as {near}"
        )
