"""The figure of several models shows the weights of each on one axis."""

from __future__ import annotations

import numpy as np

from quarl.calibration import round_layers
from quarl.inspection import whole
from quarl.policy.layers import LayerWeights
from quarl.quant.spec import QuantSpec
from quarl.report import style
from quarl.report.weight_figures import MAX_MODELS, weights_of_models

SPEC = QuantSpec.parse("int8", scheme="per-channel")


def model(name: str, width: float):
    weight = np.random.default_rng(0).uniform(-width, width, (16, 8)).astype(np.float32)
    layers = [LayerWeights("a", "Dense", weight)]
    return whole(name, layers, round_layers(layers, SPEC), SPEC)


def test_each_model_has_a_panel_on_the_same_axis_with_its_extent():
    models = [model("dqn", 2.0), model("ppo", 0.5), model("a2c $1$", 0.25)]
    drawn = weights_of_models(models, "title")
    assert len(drawn.axes) == 3
    assert {axes.get_xlim() for axes in drawn.axes} == {drawn.axes[0].get_xlim()}
    low, high = drawn.axes[0].get_xlim()
    assert low < models[0].min
    assert models[0].max < high
    for axes, one in zip(drawn.axes, models, strict=True):
        assert axes.get_title(loc="left").startswith(f"{one.model}: ")
        (bars,) = [patch for patch in axes.patches if hasattr(patch, "get_data")]
        assert bars.get_data().values.tolist() == one.histogram["counts"]
    assert "a2c $1$" in style.to_svg(drawn)


def test_more_models_than_fit_are_left_out_and_said_so():
    drawn = weights_of_models([model(str(n), 1.0) for n in range(MAX_MODELS + 2)], "title")
    assert len(drawn.axes) == MAX_MODELS
    assert drawn.get_suptitle() == f"title (first {MAX_MODELS} of {MAX_MODELS + 2})"


def test_a_model_without_spread_can_be_drawn():
    layers = [LayerWeights("a", "Dense", np.full((2, 2), 0.5, np.float32))]
    one = whole("flat", layers, round_layers(layers, SPEC), SPEC)
    assert "standard deviations" not in weights_of_models([one], "").axes[0].get_title(loc="left")
