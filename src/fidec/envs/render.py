"""One picture of an environment, for videos."""

from __future__ import annotations

from typing import Any

import numpy as np

# On a CPU, a frame of OGBench's manipulation scenes goes into a 4096^2 shadow map and 185 000 triangles. With
# a map of 1024^2 and vertices merged within 0.4 % of the scene's extent it costs a quarter of the time, and
# fewer than one pixel in a hundred looks different.
_SHADOW_MAP = 1024
_MERGE = 0.004
_MESH_ARRAYS = ("mesh_face", "mesh_facenum", "mesh_facenormal", "mesh_facetexcoord")

_renderers: dict[int, tuple[Any, Any]] = {}  # by the model's identity, which changes when a scene is rebuilt


def frame(env: Any, size: int) -> np.ndarray:
    """The scene as (height, width, 3) uint8; a MuJoCo scene is drawn `size` x `size` by our renderer."""
    base = env.unwrapped
    model, data = getattr(base, "model", None), getattr(base, "data", None)
    if model is None or data is None or not type(model).__module__.startswith("mujoco"):
        picture = env.render()
        if picture is None:
            raise ValueError("render() returned nothing; make the environment with render_mode='rgb_array'")
        return np.asarray(picture, np.uint8)
    renderer = _renderer(model, size)
    # OGBench's own choices: a bird's eye view of mazes, the arm's workspace from the front.
    camera = getattr(base, "custom_camera", None)
    if camera is None:
        camera = "front" if "front" in [model.camera(i).name for i in range(model.ncam)] else -1
    renderer.update_scene(data, camera=camera, scene_option=getattr(base, "_scene_option", None))
    return renderer.render()


def close() -> None:
    """Free the OpenGL contexts. Left to the interpreter's exit, they complain."""
    while _renderers:
        _renderers.popitem()[1][1].close()


def _renderer(model: Any, size: int) -> Any:
    import mujoco

    if id(model) not in _renderers:
        close()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, _SHADOW_MAP)
        # The renderer takes its copy of the meshes here and now; the physics gets them back untouched.
        saved = {name: getattr(model, name).copy() for name in _MESH_ARRAYS}
        try:
            _merge_vertices(model, _MERGE * model.stat.extent)
            _renderers[id(model)] = (model, mujoco.Renderer(model, height=size, width=size))
        finally:
            for name, value in saved.items():
                getattr(model, name)[:] = value
    return _renderers[id(model)][1]


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
