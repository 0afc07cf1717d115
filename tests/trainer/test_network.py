"""The compiled forward pass beside PyTorch's in float64, and the independence of a state from its neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import omstore
import trainer.network
from tests.trainer.improvement_worlds import build_pursuit
from trainer.models import OpponentMLP, masked_log_probabilities
from trainer.network import CompiledNetwork, StateInputs
from trainer.network_kernels import list_bits


@pytest.fixture(scope="module")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> omstore.Graph:
    return build_pursuit(tmp_path_factory.mktemp("network") / "pursuit")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, pursuit: omstore.Graph) -> dict[str, omstore.Graph]:
    rng = np.random.default_rng(5)
    vectors = {
        "one-hot": np.empty(0),
        "many bits": np.unique((rng.random((300, 29)) < rng.random((300, 1))).astype(np.uint8), axis=0),
        "bytes": np.unique(rng.integers(0, 256, (300, 3)), axis=0),
    }
    made = {"one-hot": pursuit}
    for name in ("many bits", "bytes"):
        made[name] = _without_edges(tmp_path_factory.mktemp("network") / "export", vectors[name])
    assert [made[name].component_bits for name in vectors] == [1, 1, 8]
    return made


def _without_edges(export: Path, vectors: NDArray[np.generic]) -> omstore.Graph:
    with omstore.create(
        export, agents=["a", "b"], num_actions=[2, 2], state_width=vectors.shape[1], rows="csr"
    ) as writer:
        nodes = writer.add_nodes(vectors)
        writer.add_rows(
            nodes[:1], np.zeros(1, np.int64), np.ones(1, np.int64), next_nodes=nodes[:1],
            probability=np.ones(1), reward=np.zeros((1, 2)), done=np.ones(1, np.bool_),
        )  # fmt: skip
    graph = omstore.open(export).graph
    assert graph is not None
    return graph


def network(graph: omstore.Graph, actions: int, hidden: int, scale: float = 3.0) -> OpponentMLP:
    made = OpponentMLP(graph.state_width, actions, hidden, seed=actions + hidden)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter *= scale
        if graph.component_bits > 1:
            made.first.weight /= 100
    return made


def reference(
    model: OpponentMLP, graph: omstore.Graph, legal: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    """Every state by PyTorch, in float64."""
    exact = OpponentMLP(model.state_width, model.num_actions, model.hidden).double()
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    states = torch.from_numpy(graph.states(np.arange(graph.num_nodes)).astype(np.float64))
    with torch.no_grad():
        mask = None if legal is None else torch.from_numpy(legal)
        found: NDArray[np.float64] = masked_log_probabilities(exact(states), mask).exp().numpy()
    return found


def evaluated(
    model: OpponentMLP,
    graph: omstore.Graph,
    legal: NDArray[np.bool_] | None = None,
    nodes: NDArray[np.int64] | None = None,
) -> NDArray[np.float32]:
    inputs = StateInputs(graph)
    inputs.prepare()
    compiled = CompiledNetwork(model, bits=inputs.bits)
    count = graph.num_nodes if nodes is None else len(nodes)
    out = np.full((count, model.num_actions), 7, np.float32)
    for first in range(0, count, inputs.chunk):
        last = min(first + inputs.chunk, count)
        some = None if legal is None else legal[first:last]
        compiled.probabilities(inputs.of(nodes, first, last), some, out[first:last])
    return out


@pytest.mark.parametrize("name", ["one-hot", "many bits", "bytes"])
@pytest.mark.parametrize(("actions", "hidden"), [(5, 128), (1, 1), (8, 16), (9, 20), (25, 33), (125, 7)])
def test_equals_pytorch(graphs: dict[str, omstore.Graph], name: str, actions: int, hidden: int) -> None:
    model = network(graphs[name], actions, hidden)
    expected = reference(model, graphs[name], None)
    found = evaluated(model, graphs[name])
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=2e-5)
    if actions > 1 and hidden > 1:
        assert np.ptp(expected, axis=0).max() > 0.05


@pytest.mark.parametrize("name", ["one-hot", "bytes"])
@pytest.mark.parametrize("actions", [5, 25])
def test_illegal_actions_get_nothing(graphs: dict[str, omstore.Graph], name: str, actions: int) -> None:
    graph = graphs[name]
    legal = np.random.default_rng(1).random((graph.num_nodes, actions)) < 0.4
    legal[3] = legal[50] = False
    model = network(graph, actions, 24)
    found = evaluated(model, graph, legal)
    np.testing.assert_allclose(found, reference(model, graph, legal), atol=2e-6, rtol=2e-5)
    assert not found[~legal].any()


@pytest.mark.parametrize("name", ["one-hot", "many bits", "bytes"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_states_numbers_depend_on_nothing_else(
    graphs: dict[str, omstore.Graph], name: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other places of a tile, beside others: other units are skipped, other sums are shared."""
    if not kept:
        monkeypatch.setattr(trainer.network, "_KEPT_BYTES", 0)
        monkeypatch.setattr(trainer.network, "_CHUNK", 50)
    graph = graphs[name]
    for actions in (5, 25):
        model = network(graph, actions, 40)
        whole = evaluated(model, graph)
        rng = np.random.default_rng(actions)
        for count in (1, 5, 6, 47, 48, 49, 200):
            nodes = rng.integers(0, graph.num_nodes, count)
            np.testing.assert_array_equal(evaluated(model, graph, nodes=nodes), whole[nodes])


def test_units_that_are_never_active(pursuit: omstore.Graph) -> None:
    model = network(pursuit, 5, 16)
    with torch.no_grad():
        model.first.bias -= 1000
        model.second.bias.fill_(0.25)
    expected = torch.softmax(torch.relu(model.second.bias) @ model.head.weight.T + model.head.bias, 0)
    np.testing.assert_allclose(evaluated(model, pursuit), np.tile(expected.detach(), (512, 1)), rtol=1e-5)


@pytest.mark.parametrize("factor", [1e3, 1e30])
def test_large_logits_leave_one_action(pursuit: omstore.Graph, factor: float) -> None:
    model = network(pursuit, 5, 16)
    with torch.no_grad():
        model.head.weight *= factor
        model.head.bias *= factor
    found = evaluated(model, pursuit)
    np.testing.assert_allclose(found, reference(model, pursuit, None), atol=1e-3)
    assert (found.max(axis=1) == 1).mean() > 0.9


@pytest.mark.parametrize("layer", ["first", "second", "head"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_passed_on(pursuit: omstore.Graph, layer: str, value: float) -> None:
    model = network(pursuit, 5, 16)
    with torch.no_grad():
        getattr(model, layer).bias[2] = value
    assert np.isnan(evaluated(model, pursuit)).any(axis=1).all()


def test_bits_are_listed() -> None:
    states = np.random.default_rng(3).random((50, 29)) < 0.3
    states[0] = 0
    out = np.full((50, 29), 99, np.uint32)
    assert list_bits(np.packbits(states, axis=1), 29, out) == states.sum(axis=1).max()
    for state, row in zip(states, out, strict=True):
        assert row.tolist() == [*np.flatnonzero(state), *[99] * (29 - int(state.sum()))]
    assert list_bits(np.full((1, 4), 255, np.uint8), 29, out) == 29  # three bits behind the state are set
    few = np.full((50, 2), 99, np.uint32)
    assert list_bits(np.packbits(states, axis=1), 29, few) == states.sum(axis=1).max()
    assert few[1].tolist() == np.flatnonzero(states[1])[:2].tolist()
