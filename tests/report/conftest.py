"""Rows and layers made by hand for the report's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quarl.calibration import quantize
from quarl.inspection import Layer, inspect
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.layers import of_policy
from quarl.policy.operators import mlp
from quarl.quant.spec import QuantSpec


def row(precision: str, bits: int, mean: float, **changes: Any) -> dict[str, Any]:
    """A row of `quarl ptq` whose fp32 scores 200."""
    made = {
        "precision": precision,
        **dict.fromkeys(("success", "success_low", "success_high", "drop", "drop_low", "drop_high", "success_margin")),
        "noninferior": mean - 2.0 > 190.0,
        **dict.fromkeys(("verdict_return", "verdict_success")),
        "differs": abs(mean - 200.0) > 2.0,
        "difference": mean - 200.0,
        "difference_low": mean - 202.0,
        "difference_high": mean - 198.0,
        "bits_weights": bits,
        "bits_mean": float(bits),
        "bits_of_layers": {"net.0": bits, "net.1": bits},
        "bits_activations": 8,
        "scheme": "default",
        "mode": "dynamic",
        "engine": "litert",
        "measured": True,
        "episodes": 100,
        "max_episodes": None,
        "mean": mean,
        "std": 10.0,
        "iqm": mean,
        "ci_low": mean - 2.0,
        "ci_high": mean + 2.0,
        "error_pct": (200.0 - mean) / 2.0,
        "margin_pct": 5.0,
        "verdict": "non-inferior" if mean - 2.0 > 190.0 else "inferior" if mean + 2.0 < 190.0 else "undecided",
        **dict.fromkeys(("observations", "error_rms", "error_max")),
        "bytes": 76_543,
        "payload": 9000 * bits,
        "bytes_packed": 9000 * bits,
        "latency_us_p50": 1.84,
        "latency_us_p99": 2.5,
        "agreement": 0.9996,
        "coverage": 1.0,
        "returns": [mean] * 100,
        "lengths": [200] * 100,
        "successes": None,
    }
    assert not changes.keys() - made.keys()
    return made | changes


@pytest.fixture
def rows(settled_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that a test may change."""
    return [dict(row) for row in settled_rows]


@pytest.fixture(scope="session")
def settled_rows() -> list[dict[str, Any]]:
    """fp32, fp16, three widths of the default scheme and one of another."""
    return [
        row("fp32", 32, 200.0, bits_activations=32, agreement=1.0),
        row("fp16", 16, 200.5, bits_activations=32),
        row("int8", 8, 199.0),
        row("int4", 4, 195.0),
        row("int2", 2, 40.0),
        row("int8", 8, 170.0, scheme="naive"),
    ]


@pytest.fixture(scope="session")
def layers() -> list[Layer]:
    """A 4-16-2 network at 4 bits."""
    rng = np.random.default_rng(0)
    dense = [(f"dense{i}", rng.normal(size=(n, k)), np.zeros(n)) for i, (k, n) in enumerate(((4, 16), (16, 2)))]
    policy = Policy(observation_shape=(4,), ops=tuple(mlp(dense, "relu")), head=ActionHead("argmax"))
    quantized = quantize(policy, QuantSpec.parse("int4", scheme="per-channel"))
    return inspect(of_policy(policy), of_policy(quantized), quantized.spec)
