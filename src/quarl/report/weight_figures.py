"""Figures of weights: those of each layer between a quantizer's levels, and those of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl.formats import number
from quarl.inspection import Layer, ModelRow
from quarl.report import style

MAX_LAYERS = 8
MAX_MODELS = 12
"""Largest numbers of layers and models in a figure; the rows contain all."""
NAMES: Mapping[str, Any] = {"x": "weight", "y": "number of weights"}


@style.look()
def weight_distribution(layers: Sequence[Layer], title: str) -> Figure:
    """Draw a panel per layer: a log histogram of the float weights over the quantizer's levels."""
    shown = layers[:MAX_LAYERS]
    left_out = f" (first {len(shown)} of {len(layers)} layers)" if len(layers) > len(shown) else ""
    columns = min(len(shown), 2)
    drawn, panels = style.panels(len(shown), f"{title}{left_out}", height=2.1, head=0.5, columns=columns, **NAMES)
    for axes, layer in zip(panels, shown, strict=True):
        row, edges = layer.row, layer.row.histogram["edges"]
        named = f"{row.layer} {'×'.join(map(str, row.shape))}"
        caption = f"{named}\n{row.levels} levels, {_noise(row.sqnr_db)}"
        _histogram(axes, row.histogram, style.BARS, caption, columns)
        levels = layer.grid[(layer.grid >= edges[0]) & (layer.grid <= edges[-1])]
        if levels.size:
            # many lines would fill the panel
            width = float(np.clip(60 / levels.size, 0.25, 1.2))
            # one path with gaps instead of a path per level makes a tenth of the file
            x, y = np.repeat(levels, 3), np.tile([0.0, 1.0, np.nan], levels.size)
            axes.plot(x, y, transform=axes.get_xaxis_transform(), color=style.LEVELS, alpha=0.6, linewidth=width)
        axes.xaxis.set_major_locator(MaxNLocator(6))
    return drawn


@style.look()
def weights_of_models(models: Sequence[ModelRow], title: str) -> Figure:
    """Draw a panel per model: a log histogram of all its weights over a bar from the smallest to the largest."""
    shown = models[:MAX_MODELS]
    left_out = f" (first {len(shown)} of {len(models)})" if len(models) > len(shown) else ""
    low, high = min(model.min for model in shown), max(model.max for model in shown)
    margin = 0.03 * (high - low) or 1.0
    drawn, panels = style.panels(len(shown), f"{title}{left_out}", height=1.45, head=0.7, shared="x", **NAMES)
    for axes, model, color in zip(panels, shown, cycle(style.SERIES), strict=False):
        spread = f", largest {model.spread:.1f} standard deviations" if model.spread is not None else ""
        caption = f"{model.model}: {number(model.min)} to {number(model.max)}{spread}, {_noise(model.sqnr_db)}"
        _histogram(axes, model.histogram, color, caption, 1)
        axes.axvspan(model.min, model.max, color=color, alpha=0.12, linewidth=0)
        axes.set_xlim(low - margin, high + margin)
    return drawn


def _histogram(axes: Axes, histogram: Mapping[str, Any], color: str, caption: str, columns: int) -> None:
    axes.stairs(histogram["counts"], histogram["edges"], fill=True, color=color, alpha=0.85)
    axes.set_yscale("log")
    style.plain(axes.yaxis, "{x:,.0f}")
    style.panel_title(axes, caption, columns)
    axes.grid(visible=False, axis="x")


def _noise(sqnr_db: float | None) -> str:
    return "exact" if sqnr_db is None else f"{sqnr_db:.1f} dB"
