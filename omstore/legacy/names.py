"""The names legacy exports give to things, most telling first."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "EDGE_ROLES",
    "EDGE_TABLES",
    "GRAPH_NAME",
    "ID_NAMES",
    "NODE_TABLES",
    "REPLAY_NAME",
    "REPLAY_ROLES",
    "REPLAY_TABLES",
    "RING_POSITIONS",
    "RING_SIZES",
    "STATE_NAMES",
    "plays_a_part",
]


GRAPH_NAME = "env_transition_graph.pkl"
"""File of an export's transition graph, in ``wm/``."""
REPLAY_NAME = "D.pkl"
"""File of an export's replay, in ``wm/``."""


def _words(text: str) -> Sequence[str]:
    return tuple(text.split())


EDGE_TABLES = _words(
    "edges edge_list transitions transition_list successors arcs links adjacency adj graph "
    "transition_graph transition_table p t e"
)

NODE_TABLES = _words(
    "states nodes node_states state_vectors node_vectors vertices state_list node_list all_states "
    "all_nodes index_to_state id_to_state id2state state_to_id state_to_index state2id node_to_id "
    "id_to_node node_ids state_ids index s v"
)

STATE_NAMES = _words("state vector state_vector features observation obs key value joint_state x")

ID_NAMES = _words("id node_id state_id index idx node uid number")

_ACTIONS = _words("joint_action action actions a joint_actions ja act acts joint_act action_profile")

_REWARDS = _words("reward rewards r rew rews joint_reward payoff payoffs")

_DONES = _words("done terminal dones is_terminal is_done terminated terminals term absorbing d")

_NEXT_NODES = _words(
    "next_node dst target next s_next next_state v to to_node to_state to_id dest destination "
    "successor dst_id target_id next_id next_node_id next_state_id s_prime sp s2 s1 ns next_s "
    "new_state end child head nxt"
)

_SOURCES = _words(
    "source src s u state from node from_node from_state from_id src_id source_id node_id state_id "
    "origin start parent prev tail s0 curr current current_state current_node"
)

_PROBABILITIES = _words("probability prob p probabilities probs transition_probability pr weight")

EDGE_ROLES: dict[str, Sequence[str]] = {
    "next_node": _NEXT_NODES,
    "source": _SOURCES,
    "joint_action": _ACTIONS,
    "probability": _PROBABILITIES,
    "reward": _REWARDS,
    "done": _DONES,
}
"""For every role of an edge; ``next_node`` is looked for before ``source``."""

REPLAY_TABLES = _words(
    "transitions replay buffer data memory storage experiences experience samples d dataset records "
    "episodes trajectory trajectories"
)

_NEXT_OBSERVATIONS = _words(
    "next_observation next_obs next_observations next_state next_states s_next next_s obs_next "
    "observation_next observations_next state_next obs2 s2 s1 sp s_prime new_obs new_state next "
    "obs_tp1 nobs ns"
)

_OBSERVATIONS = _words(
    "observation obs observations state states s obs1 obs_t o s0 ob current_state current_obs"
)

REPLAY_ROLES: dict[str, Sequence[str]] = {
    "next_observation": _NEXT_OBSERVATIONS,
    "observation": _OBSERVATIONS,
    "joint_action": _ACTIONS,
    "reward": _REWARDS,
    "done": _DONES,
}

RING_POSITIONS = _words(
    "position pos ptr pointer write_position write_pos next_idx next_index idx index cursor head insert_index"
)
"""Names of a ring's write position: the next record to be overwritten, so the oldest."""

RING_SIZES = _words("size length len count num_transitions n current_size filled")
"""Names of how many records of preallocated columns are filled."""


def plays_a_part(path: tuple[str | int, ...]) -> bool:
    """Whether a field's name is one of those that play a part in an edge, a node or a transition."""
    steps = [step for step in path if isinstance(step, str) and not step.startswith("@")]
    roles = (*EDGE_ROLES.values(), *REPLAY_ROLES.values(), STATE_NAMES, ID_NAMES)
    return bool(steps) and any(steps[0].lower().strip("_") in names for names in roles)
