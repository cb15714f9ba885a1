"""A policy that several modules serve: its programs are compiled once."""

from __future__ import annotations

import pytest

from fidec.serve.batching import ServedPolicy
from helpers.serving import make_policy


@pytest.fixture(scope="session")
def served():
    """An untrained FiDec, in batches of up to 8."""
    return ServedPolicy(make_policy(), largest=8)
