"""Lanes that several modules share: their programs are compiled once."""

from __future__ import annotations

import pytest

from fidec.serve.lanes import Lanes
from helpers.serving import make_policy


@pytest.fixture(scope="session")
def lanes():
    """An untrained FiDec, in batches of up to 8."""
    return Lanes(make_policy(), largest=8)
