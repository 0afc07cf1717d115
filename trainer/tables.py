"""Policies of networks as tables over the nodes of a graph, for rollouts in compiled code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omstore import PolicyTable, RolloutTables
from omstore.errors import UsageError
from trainer.adapter import GraphWorldModelAdapter
from trainer.models import OpponentMLP
from trainer.network import CompiledNetwork, StateInputs

__all__ = ["ActionMasks", "PolicyTabulator", "Side", "table_bytes"]

Side = Literal["agent", "team"]
"""Whose policy: the focal agent's, or the team's, whose actions are team actions."""

_DEVICE_BLOCK = 1 << 15
"""Rows evaluated at a time on a device; the last block is filled up. Fixed: a matrix product may round in another
way for another number of rows."""
_MASK_BYTES = 64 << 20
_FEW_ROWS = 256  # a thread of their own would take longer to start


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


class PolicyTabulator:
    """Evaluates networks at nodes of a graph: at all of them, or at those visited.

    The numbers of a node are the same, to the bit, whichever nodes are asked for with it and in how many threads:
    on a CPU by compiled code that sees to it (`trainer.network_kernels`); on a device the network runs as it is,
    on blocks of a fixed number of rows.

    Parameters
    ----------
    dyn : GraphWorldModelAdapter
    tables : RolloutTables
        Of the same graph; tells whether all joint actions are legal.
    threads : int
        Python threads that share the nodes, on a CPU.

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
        self._inputs = StateInputs(dyn.graph)
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
        return PolicyTable(probabilities.numpy(), nodes=nodes, out=out)

    def compiled(self, model: OpponentMLP) -> CompiledNetwork | None:
        """Return a network's weights as they are now, for `probabilities` to be asked several times; None on a device."""
        return CompiledNetwork(model, bits=self._inputs.bits) if _on_cpu(model) else None

    def probabilities(
        self,
        model: OpponentMLP,
        side: Side,
        nodes: NDArray[np.int64] | None = None,
        *,
        compiled: CompiledNetwork | None = None,
    ) -> Tensor:
        """Return the probabilities of a policy at nodes, (rows, actions) float32.

        Illegal actions have 0; a node without legal actions has nothing else. Parameters and errors are those of
        `table`; with `compiled` the weights are those.
        """
        return self._evaluated(model, side, nodes, None, compiled)

    def _evaluated(
        self,
        model: OpponentMLP,
        side: Side,
        nodes: NDArray[np.int64] | None,
        buffer: Tensor | None,
        compiled: CompiledNetwork | None = None,
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
        if _on_cpu(model):
            network = compiled or CompiledNetwork(model, bits=self._inputs.bits)
            wrong = self._on_cpu(network, masks, nodes, result.numpy())
        else:
            self._on_device(model, masks, nodes, result)
            wrong = int(torch.isnan(result).any(dim=1).sum())
        if wrong:
            raise UsageError(
                f"the {side}'s network gives no numbers any more at {wrong:,} of {count:,} nodes",
                "Its training diverged: lower lr, or raise temperature.",
            )
        return result

    def _on_cpu(
        self,
        network: CompiledNetwork,
        masks: ActionMasks,
        nodes: NDArray[np.int64] | None,
        out: NDArray[np.float32],
    ) -> int:
        self._inputs.prepare()
        count, step = len(out), self._inputs.chunk

        def run(begin: int, end: int) -> int:
            wrong = 0
            for first in range(begin, end, step):
                last = min(first + step, end)
                legal = None
                if not masks.always:
                    legal = masks.of(np.arange(first, last) if nodes is None else nodes[first:last])
                wrong += network.probabilities(self._inputs.of(nodes, first, last), legal, out[first:last])
            return wrong

        threads = max(1, min(self.threads, count // _FEW_ROWS))
        if threads == 1:
            return run(0, count)
        bounds = [k * count // threads for k in range(threads + 1)]
        with ThreadPoolExecutor(threads) as executor:
            return sum(executor.map(run, bounds[:-1], bounds[1:]))

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
            result[first:last] = _softmax(logits, masks, own)


def _on_cpu(model: OpponentMLP) -> bool:
    return model.head.weight.device.type == "cpu"


def _softmax(logits: Tensor, masks: ActionMasks, nodes: NDArray[np.int64]) -> Tensor:
    if masks.always:
        return torch.softmax(logits, 1)
    illegal = torch.from_numpy(~masks.of(nodes))
    return torch.softmax(logits.masked_fill(illegal, -torch.inf), 1).masked_fill(illegal, 0.0)
