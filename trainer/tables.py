"""Policies of networks as tables over the nodes of a graph, for rollouts in compiled code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omstore import PolicyTable, RolloutTables
from omstore.compiled import as_input
from omstore.errors import UsageError
from trainer.adapter import GraphWorldModelAdapter
from trainer.layers import add_rows, softmax_rows
from trainer.models import OpponentMLP
from trainer.torch_threads import one_torch_thread

__all__ = ["BLOCK", "ActionMasks", "PolicyTabulator", "Side", "table_bytes"]

Side = Literal["agent", "team"]
"""Whose policy: the focal agent's, or the team's, whose actions are team actions."""

BLOCK = 512
"""Rows evaluated at a time; the last block is filled up. Fixed: a matrix product may round in another way for
another number of rows. 512 rows of 128 units stay in a core's cache."""

_DEVICE_BLOCK = 1 << 15  # the same where a device has thousands of cores
_FEW_ACTIONS = 8  # for more, torch's softmax is quicker
_MASK_BYTES = 64 << 20


def table_bytes(rows: int, actions: int) -> int:
    """Return the memory that a table takes while it is made: probabilities, and their padded sums."""
    return 4 * rows * (actions + -(-actions // 8) * 8)


class ActionMasks:
    """Which actions of a side are legal at nodes, that is, part of some legal joint action.

    Parameters
    ----------
    dyn : GraphWorldModelAdapter
    side : {"agent", "team"}
    always : bool
        Whether every joint action is legal everywhere (`RolloutTables.legality`): nothing is looked at then.

    Memory: a bit an action of every node, packed, made on first use where that is at most 64 MiB; else `dyn` is
    asked each time.
    """

    def __init__(self, dyn: GraphWorldModelAdapter, side: Side, *, always: bool) -> None:
        self.num_actions = dyn.actions.num_focal if side == "agent" else dyn.actions.num_team
        self.always = always
        self._ask = dyn.legal_focal if side == "agent" else dyn.legal_team
        self._num_nodes = dyn.num_nodes
        self._keeps = dyn.num_nodes * -(-self.num_actions // 8) <= _MASK_BYTES
        self._kept: NDArray[np.uint8] | None = None

    def of(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the legal actions of nodes, (n,) -> (n, actions) bool."""
        if self.always:
            return np.ones((len(nodes), self.num_actions), np.bool_)
        if not self._keeps:
            return self._ask(nodes)
        if self._kept is None:
            step = 1 << 14
            parts = [
                np.packbits(self._ask(np.arange(first, min(first + step, self._num_nodes))), axis=1)
                for first in range(0, self._num_nodes, step)
            ]
            self._kept = np.concatenate(parts)
        return np.unpackbits(self._kept[nodes], axis=1, count=self.num_actions).view(np.bool_)


@dataclass
class _Weights:
    """A network's weights as blocks are evaluated with them."""

    first: NDArray[np.float32]  # (W + 1, hidden): a row for each component, and one of zeros
    first_bias: NDArray[np.float32]
    layers: tuple[tuple[Tensor, Tensor], ...]  # of each layer: (in, out), (out,)

    @classmethod
    def of(cls, model: OpponentMLP) -> _Weights:
        layers = tuple(
            (layer.weight.detach().t(), layer.bias.detach())
            for layer in (model.first, model.second, model.head)
        )
        weight, bias = layers[0]
        first = np.zeros((model.state_width + 1, model.hidden), np.float32)
        first[:-1] = weight.numpy()
        return cls(as_input(first, np.float32), as_input(bias.numpy(), np.float32), layers)


@dataclass
class _Scratch:
    """The numbers of a block, used again for the next."""

    states: Tensor
    hidden: Tensor
    second: Tensor
    logits: Tensor

    @classmethod
    def of(cls, model: OpponentMLP, width: int) -> _Scratch:
        return cls(*(torch.zeros(BLOCK, n) for n in (width, model.hidden, model.hidden, model.num_actions)))


class PolicyTabulator:
    """Evaluates networks at nodes of a graph: at all of them, or at those visited.

    The numbers of a node are the same, to the bit, whichever nodes are asked for with it and in how many threads:
    the first layer is summed a state at a time, everything else runs on blocks of `BLOCK` rows, in one torch
    thread each. On a device the network runs as it is, on blocks of a fixed number of rows as well.

    Parameters
    ----------
    dyn : GraphWorldModelAdapter
    tables : RolloutTables
        Of the same graph; tells whether all joint actions are legal.
    threads : int
        Python threads that take blocks, on a CPU.

    Attributes
    ----------
    masks : dict
        `ActionMasks` of ``"agent"`` and ``"team"``.
    """

    def __init__(self, dyn: GraphWorldModelAdapter, tables: RolloutTables, *, threads: int = 2) -> None:
        if threads < 1:
            raise UsageError(f"{threads} threads do no work: at least 1 is needed")
        self.graph = dyn.graph
        self.threads = threads
        always = tables.legality.always
        self.masks: dict[Side, ActionMasks] = {
            "agent": ActionMasks(dyn, "agent", always=always),
            "team": ActionMasks(dyn, "team", always=always),
        }
        self._kept: Tensor | None = None

    def table(
        self,
        model: OpponentMLP,
        side: Side,
        nodes: NDArray[np.int64] | None = None,
        *,
        out: PolicyTable | None = None,
    ) -> PolicyTable:
        """Tabulate a policy.

        Parameters
        ----------
        model : OpponentMLP
        side : {"agent", "team"}
            Whose policy it is.
        nodes : (rows,) int64, optional
            Ascending, each once. None: all nodes.
        out : PolicyTable, optional
            An earlier table of all nodes, whose memory is used again; the probabilities' then is as well.

        Returns
        -------
        PolicyTable
            Memory: `table_bytes` while it is made.

        Raises
        ------
        UsageError
            If the network gives no numbers, as one does whose training diverged.
        """
        buffer = None if out is None else self._kept
        probabilities = self._evaluated(model, side, nodes, buffer)
        self._kept = None if out is None else probabilities
        values = probabilities.numpy()
        try:
            return PolicyTable(values, nodes=nodes, out=out)
        except UsageError as error:
            wrong = int(np.isnan(values).any(axis=1).sum())
            if not wrong:
                raise
            raise UsageError(
                f"the {side}'s network gives no numbers any more at {wrong:,} of {len(values):,} nodes",
                "Its training diverged: lower lr, or raise temperature.",
            ) from error

    def probabilities(self, model: OpponentMLP, side: Side, nodes: NDArray[np.int64] | None = None) -> Tensor:
        """Return the probabilities of a policy at nodes, (rows, actions) float32; parameters as in `table`.

        Illegal actions have 0; a node without legal actions has nothing else.
        """
        return self._evaluated(model, side, nodes, None)

    def _evaluated(
        self, model: OpponentMLP, side: Side, nodes: NDArray[np.int64] | None, buffer: Tensor | None
    ) -> Tensor:
        masks = self.masks[side]
        if model.num_actions != masks.num_actions or model.state_width != self.graph.state_width:
            raise UsageError(
                f"the {side} has {masks.num_actions} actions in states of {self.graph.state_width} components; "
                f"the network is for {model.num_actions} and {model.state_width}"
            )
        count = self.graph.num_nodes if nodes is None else len(nodes)
        shape = (count, model.num_actions)
        result = buffer if buffer is not None and buffer.shape == shape else torch.empty(shape)
        if model.head.weight.device.type == "cpu":
            self._on_cpu(model, masks, nodes, result)
        else:
            self._on_device(model, masks, nodes, result)
        return result

    def _on_cpu(
        self, model: OpponentMLP, masks: ActionMasks, nodes: NDArray[np.int64] | None, result: Tensor
    ) -> None:
        weights = _Weights.of(model)
        blocks = -(-len(result) // BLOCK)
        threads = max(1, min(self.threads, blocks))

        def run(share: range) -> None:
            with torch.inference_mode():  # which counts for its own thread
                scratch = _Scratch.of(model, self.graph.state_width if self.graph.component_bits > 1 else 0)
                for block in share:
                    first, last = block * BLOCK, min((block + 1) * BLOCK, len(result))
                    own = np.arange(first, last) if nodes is None else nodes[first:last]
                    self._logits(weights, scratch, own)
                    _softmax(scratch.logits[: last - first], masks, own, result[first:last])

        shares = [range(k * blocks // threads, (k + 1) * blocks // threads) for k in range(threads)]
        with one_torch_thread():
            if threads == 1:
                run(shares[0])
                return
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as executor:
                list(executor.map(run, shares))

    def _logits(self, weights: _Weights, scratch: _Scratch, nodes: NDArray[np.int64]) -> None:
        rows = len(nodes)
        first, second, head = weights.layers
        if self.graph.component_bits == 1:
            packed = as_input(self.graph.packed_states(nodes), np.uint8)
            add_rows(packed, weights.first, weights.first_bias, scratch.hidden.numpy()[:rows])
        else:
            scratch.states.numpy()[:rows] = self.graph.states(nodes)
            torch.addmm(first[1], scratch.states, first[0], out=scratch.hidden)
            scratch.hidden.relu_()
        torch.addmm(second[1], scratch.hidden, second[0], out=scratch.second)
        torch.addmm(head[1], scratch.second.relu_(), head[0], out=scratch.logits)

    @torch.inference_mode()
    def _on_device(
        self, model: OpponentMLP, masks: ActionMasks, nodes: NDArray[np.int64] | None, result: Tensor
    ) -> None:
        device = model.head.weight.device
        states = torch.zeros(_DEVICE_BLOCK, self.graph.state_width)
        for first in range(0, len(result), _DEVICE_BLOCK):
            last = min(first + _DEVICE_BLOCK, len(result))
            own = np.arange(first, last) if nodes is None else nodes[first:last]
            states.numpy()[: last - first] = self.graph.states(own)
            logits = model(states.to(device))[: last - first].cpu()
            _softmax(logits, masks, own, result[first:last])


def _softmax(logits: Tensor, masks: ActionMasks, nodes: NDArray[np.int64], out: Tensor) -> None:
    illegal = None
    if not masks.always:
        illegal = torch.from_numpy(~masks.of(nodes))
        logits = logits.masked_fill(illegal, -torch.inf)
    if logits.shape[1] <= _FEW_ACTIONS:
        softmax_rows(logits.numpy(), out.numpy())
    else:
        torch.softmax(logits, 1, out=out)
    if illegal is not None:
        out.masked_fill_(illegal, 0.0)  # where nothing is legal, these are no numbers
