"""One frame of an environment, for videos."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fidec.envs.fast_render import cheap_scene

# On a CPU, a frame of OGBench's manipulation scenes takes a 4096^2 shadow map and 185 000 triangles. With a map of
# 1024^2 and vertices merged within 0.4 % of the scene's extent it takes a quarter of the time, and fewer than one
# pixel in a hundred looks different.
_SHADOW_MAP = 1024
_MERGE = 0.004

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
        with cheap_scene(model, _MERGE * model.stat.extent, _SHADOW_MAP):
            _renderers[id(model)] = (model, mujoco.Renderer(model, height=size, width=size))
    return _renderers[id(model)][1]
