"""Drawing MuJoCo scenes for videos, also on machines that draw on a CPU.

A frame of OGBench's manipulation scenes takes a 4096^2 shadow map and 185 000 triangles, however small it is. Here
the map has 1024^2, and vertices are merged within 0.4 % of the scene's extent: a quarter of the time, and fewer than
one pixel in a hundred looks different. The physics does not change. Pixel observations are drawn by OGBench itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

_CELL, _SHADOW_MAP = 0.004, 1024  # the cell of a grid by the scene's extent
_MESH_ARRAYS = ("mesh_face", "mesh_facenum", "mesh_facenormal", "mesh_facetexcoord")


def gl_environ() -> dict[str, str]:
    """The environment variables that let MuJoCo draw: EGL if there is no display and nothing else was chosen."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or display or os.environ.get("MUJOCO_GL"):
        return {}
    return {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}


@contextmanager
def _cheap_scene(model: Any) -> Iterator[None]:
    """A renderer made in this context takes merged meshes and a small shadow map. Then the model is restored."""
    quality = model.vis.quality
    saved = {name: getattr(model, name).copy() for name in _MESH_ARRAYS}
    shadow_size, quality.shadowsize = quality.shadowsize, min(quality.shadowsize, _SHADOW_MAP)
    try:
        _merge_vertices(model, _CELL * model.stat.extent)
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


_renderers: dict[int, tuple[Any, Any]] = {}  # by the model's identity, which changes when a scene is rebuilt


class Drawing(NamedTuple):
    """How an environment is drawn, known after its first reset."""

    mujoco: bool  # its MuJoCo scene is drawn here, with OpenGL, without its own render()
    mode: str | None  # the render mode that it was made with
    modes: tuple[str, ...]  # the render modes that it declares


def drawing(env: Any) -> Drawing:
    base, metadata = env.unwrapped, getattr(env, "metadata", None) or {}
    model, data = getattr(base, "model", None), getattr(base, "data", None)
    mujoco = data is not None and type(model).__module__.startswith("mujoco")
    modes = tuple(str(mode) for mode in metadata.get("render_modes") or ())
    return Drawing(mujoco, getattr(env, "render_mode", None), modes)


def frame(env: Any, size: int) -> np.ndarray:
    """The scene as (height, width, 3) uint8. A MuJoCo scene is drawn here, `size` x `size`, others by `render()`."""
    if not drawing(env).mujoco:
        picture = env.render()
        if picture is None:
            raise ValueError("render() returned None")
        return np.asarray(picture, np.uint8)
    base = env.unwrapped
    model, data = base.model, base.data
    renderer = _renderer(model, size)
    # As OGBench chooses: mazes from above, the arm's workspace from the front.
    camera = getattr(base, "custom_camera", None)
    if camera is None:
        camera = "front" if "front" in [model.camera(i).name for i in range(model.ncam)] else -1
    renderer.update_scene(data, camera=camera, scene_option=getattr(base, "_scene_option", None))
    return renderer.render()


def close() -> None:
    """Free the OpenGL contexts. At the interpreter's exit they would print errors."""
    while _renderers:
        _renderers.popitem()[1][1].close()


def _renderer(model: Any, size: int) -> Any:
    import mujoco

    if id(model) not in _renderers:
        close()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        with _cheap_scene(model):
            _renderers[id(model)] = (model, mujoco.Renderer(model, height=size, width=size))
    return _renderers[id(model)][1]
