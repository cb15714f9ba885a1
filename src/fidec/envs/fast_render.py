"""Faster drawing of OGBench's scenes, for machines that draw on a CPU.

A frame of a manipulation scene takes a 4096^2 shadow map and 185 000 triangles, however small it is. With a map of
512^2 and vertices merged within 5 mm a 64 x 64 frame takes a fifth of the time. About one pixel in a hundred looks
different in the cube scenes, and five to eight in the puzzles and in scene, whose buttons and drawers have thin
edges. The physics does not change. Data and evaluation must be drawn in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

Rendering = Literal["exact", "fast"]  # as OGBench draws, or as `install` does

_CELL = 0.005  # metres
_SHADOW_MAP = 512
_MESH_ARRAYS = ("mesh_face", "mesh_facenum", "mesh_facenormal", "mesh_facetexcoord")


def install(env: Any) -> Any:
    """Draw this environment's pixel observations the fast way from now on; returns the environment.

    For OGBench's manipulation environments, which make their renderer in `_initialize_renderer` whenever a scene is
    compiled. Other environments have no such function, which raises an AttributeError.
    """
    base = env.unwrapped
    initialize = type(base)._initialize_renderer

    def initialize_fast() -> None:
        with cheap_scene(base.model, _CELL, _SHADOW_MAP):
            initialize(base)

    base._initialize_renderer = initialize_fast
    if base._renderer is not None:
        base._renderer.close()
        initialize_fast()
    return env


@contextmanager
def cheap_scene(model: Any, cell: float, shadow_map: int) -> Iterator[None]:
    """A renderer made in this context takes merged meshes and a small shadow map. Then the model is restored."""
    quality = model.vis.quality
    saved = {name: getattr(model, name).copy() for name in _MESH_ARRAYS}
    shadow_size, quality.shadowsize = quality.shadowsize, min(quality.shadowsize, shadow_map)
    try:
        _merge_vertices(model, cell)
        yield
    finally:
        quality.shadowsize = shadow_size
        for name, value in saved.items():
            getattr(model, name)[:] = value


def _merge_vertices(model: Any, cell: float) -> None:
    """Merge the vertices that share a cell of a grid; drop the triangles that this leaves without area."""
    for mesh in range(model.nmesh):
        start, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        cells = np.round(model.mesh_vert[start : start + count] / cell)
        _, first, inverse = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        start, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        faces = first[inverse.ravel()[model.mesh_face[start : start + count]]]
        corners = np.sort(faces, axis=1)
        kept = np.flatnonzero((corners[:, 0] != corners[:, 1]) & (corners[:, 1] != corners[:, 2]))
        kept = kept[np.sort(np.unique(corners[kept], axis=0, return_index=True)[1])]
        if len(kept) == 0:
            continue
        model.mesh_face[start : start + count][kept] = faces[kept]
        for name in ("mesh_face", "mesh_facenormal", "mesh_facetexcoord"):
            rows = getattr(model, name)[start : start + count]
            rows[: len(kept)] = rows[kept]
        model.mesh_facenum[mesh] = len(kept)
