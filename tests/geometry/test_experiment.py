"""Jobs of the comparison in processes. Whole runs are in tests/cli/test_geometry_cli.py."""

from __future__ import annotations

import pytest

from fidec.errors import RunError
from fidec.geometry import experiment


def test_a_job_that_fails_is_named_with_its_reason(tmp_path):
    (tmp_path / "bimodal").mkdir()
    (tmp_path / "bimodal" / "flows.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"bimodal: isotropic: .*flows\.safetensors is not a readable"):
        experiment.run(["bimodal"], tmp_path, seeds=1, methods=["isotropic"], workers=1)
