"""The plan of a network's quantizers, derived once from its graph and stored with the policy as plain data."""

from __future__ import annotations

from collections.abc import Iterable

from quarl.errors import QuarlError
from quarl.policy.graph import ActivationGrid, edge_layers, final_linear
from quarl.policy.grids import fixed_grid, origin, pixel_grid, trained_rules, wide_bits
from quarl.policy.rewrite import readings, scores
from quarl.policy.trained import LayerPlan, NetworkPlan, Site
from quarl.qat.graphs import Graph
from quarl.quant.spec import QatSpec


def plan_network(name: str, graphs: Iterable[Graph], spec: QatSpec) -> NetworkPlan:
    """Return the plan of a network.

    A layer that occurs in several graphs, as in a features extractor shared by actor and critic, is planned by the
    first.

    Args:
        name: Name of the network.
        graphs: Graphs that it computes.
        spec: Bits and options of the training.

    Returns:
        The plan.
    """
    layers: dict[str, LayerPlan] = {}
    rows = 0
    for graph in graphs:
        planning = _Planning(name, graph, spec, rows)
        for layer in planning.layers():
            layers.setdefault(layer.path, layer)
        rows = planning.rows
    return NetworkPlan(layers=tuple(layers.values()), rows=rows)


def layer_name(network: str, graph: Graph, layer: str) -> str:
    """Return the name of a graph's layer in the policy, as `skip` expects it.

    Args:
        network: Name of the network.
        graph: Graph of the layer.
        layer: Name of the layer in the graph.

    Returns:
        The full name.
    """
    path = graph.path(layer)
    return f"{network}.{path}" if network else path


class _Planning:
    """The layers of one graph; `rows` continues the numbering of the graphs before."""

    def __init__(self, network: str, graph: Graph, spec: QatSpec, rows: int) -> None:
        self.network, self.graph, self.policy, self.spec, self.rows = network, graph, graph.policy, spec, rows
        self.rules = trained_rules(self.policy, self._skips) if spec.activation_bits is not None else {}
        self.row_of: dict[str, int] = {}
        edges, final = edge_layers(self.policy), final_linear(self.policy)
        self.bits = {op.name: spec.bits_of(edge=op.name in edges, last=op.name in final) for op in self.policy.linear}

    def layers(self) -> Iterable[LayerPlan]:
        feeds = self._feeds()
        for op in self.policy.linear:
            if not self._skips(op.name):
                value = origin(self.rules, op.inputs[0])
                rule = self.rules.get(value)
                # outputs of an earlier layer are integers already
                reads = rule is not None and rule.kind != "layer"
                yield LayerPlan(
                    path=self.graph.path(op.name),
                    bits=self.bits[op.name],
                    before=self._site(value) if reads else None,
                    behind=self._site(op.name) if op.name in self.rules else None,
                    source=self._site(value) if rule is not None else None,
                    feeds=feeds.get(op.name, ()),
                    scores=self.graph.acts and op is scores(self.policy),
                )

    def _feeds(self) -> dict[str, tuple[str, ...]]:
        """Return, by layer, the layers it feeds through a ReLU, if all of them and itself are quantized by channels."""
        feeds = {}
        # the noise of gSDE scales with the last layer's input
        last = final_linear(self.policy) if self.graph.noisy else ()
        for _, chain, consumers in readings(self.policy):
            if chain is not None and not any(self._skips(op.name) or op.name in last for op in (chain, *consumers)):
                rule = self.rules.get(chain.name)
                if rule is not None and rule.function == "relu":
                    feeds[chain.name] = tuple(self.graph.path(op.name) for op in consumers)
        return feeds

    def _skips(self, layer: str) -> bool:
        return self.spec.skips(layer_name(self.network, self.graph, layer))

    def _site(self, name: str) -> Site:
        rule, bits = self.rules[name], self.spec.activation_bits or 8
        if rule.kind == "fixed":
            return _fixed(fixed_grid(rule.function, bits))
        if rule.kind == "pixels":
            return _fixed(pixel_grid(rule.step, self.spec.observation_bits or 8))
        bits, wide = self._observation(name) if rule.kind == "observation" else (bits, False)
        seen = name in self.row_of
        if not seen:
            self.row_of[name], self.rows = self.rows, self.rows + 1
        return Site(bits=bits, row=self.row_of[name], wide=wide, relu=rule.function == "relu", observes=not seen)

    def _observation(self, name: str) -> tuple[int, bool]:
        """Return (bits, needs a wide grid) of the observation that dense layers read."""
        # codes of a grid without a level at 0 are odd and have one bit more
        exact = wide_bits(self.policy, name, lambda layer: self.bits[layer] + self.spec.mid_rise(self.bits[layer]))
        asked, least = self.spec.observation_bits, max(8, self.spec.activation_bits or 8)
        if asked is not None and asked > max(exact, least):
            raise QuarlError(
                f"the observation cannot have {asked} bits: sums over it are exact with up to {exact} when layers "
                f"read so many numbers with such weights; use at most {max(exact, least)}"
            )
        wanted = asked or max(exact, least)
        return wanted, 8 < wanted <= exact


def _fixed(grid: ActivationGrid) -> Site:
    return Site(bits=grid.bits, scale=grid.scale, zero_point=grid.zero_point, observes=False)
