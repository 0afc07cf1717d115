"""What a model may answer, and what it may not: messages name the state and the joint action."""

import numpy as np
import pytest

from omstore.errors import ModelError, UsageError
from omstore.model import IndependentModel, Kernel, Outcomes, TransitionModel, load_model
from omstore.model.checks import Answers, checked_model


class Coin(TransitionModel):
    """One agent, two places; `given` replaces what is right."""

    agents = ("a",)
    num_actions = (2,)
    sizes = (2, 3)

    def __init__(self, **given):
        for name, value in given.items():
            setattr(self, name, value)

    def successors(self, states, joint_actions):
        return self.outcomes(states)

    def outcomes(self, states):
        return Outcomes.certain(states)


STATES, ACTIONS = np.array([[0, 0], [1, 2]]), np.array([0, 1])
GOOD = Outcomes(np.arange(3), STATES, np.ones(2))


def answer(outcomes):
    return Answers(checked_model(Coin(outcomes=lambda states: outcomes))).successors(STATES, ACTIONS)


def test_good_answers_pass_and_impossible_outcomes_go():
    found = answer(
        Outcomes(
            np.array([0, 3, 4]),
            np.array([[0, 0], [1, 1], [0, 2], [1, 2]], np.int8),
            np.array([0.25, 0.0, 0.75, 1.0], np.float32),
            np.array([[1], [2], [3], [4]]),
            np.array([0, 1, 0, 1]),
        )
    )
    assert found.offsets.tolist() == [0, 2, 3]
    assert found.next_states.tolist() == [[0, 0], [0, 2], [1, 2]]
    assert found.reward.tolist() == [[1.0], [3.0], [4.0]]
    assert found.done.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"probability": np.array([1.0, 0.4])},
            r"state \(1, 2\), joint action \(1,\): probabilities \[0.4\] sum to 0.4",
        ),
        ({"probability": np.array([1.0, np.nan])}, "sum to nan"),
        ({"probability": np.ones(3)}, r"\(3,\) probabilities"),
        (
            {"next_states": np.array([[0, 0], [1, 3]])},
            r"state \(1, 2\), joint action \(1,\): component 1 of next state \(1, 3\) isn't within 0 to 2",
        ),
        ({"next_states": np.array([[-1, 0], [1, 0]])}, "component 0 of next state"),
        ({"next_states": np.zeros((2, 3), int)}, r"shape \(2, 3\)"),
        ({"next_states": np.zeros((2, 2))}, "float64 next states"),
        ({"offsets": np.arange(2)}, r"offsets of shape \(2,\) for 2 rows"),
        ({"offsets": np.array([0, 2, 1])}, "never fall"),
        ({"reward": np.zeros((2, 2))}, r"rewards of \(2, 2\), not \(2, 1\)"),
        ({"reward": np.array([[0.0], [np.inf]])}, r"state \(1, 2\).*finite"),
        ({"done": np.zeros(1)}, "done flags"),
    ],
)
def test_bad_answers_name_what_is_wrong(change, message):
    with pytest.raises(ModelError, match=message):
        answer(Outcomes(**{**vars(GOOD), **change}))


def test_negative_probabilities_that_sum_to_one():
    with pytest.raises(ModelError, match="numbers from 0 on"):
        answer(Outcomes(np.array([0, 2, 3]), STATES[[0, 1, 0]], np.array([1.5, -0.5, 1.0])))


def test_successors_of_another_type():
    with pytest.raises(ModelError, match="gave dict, not Outcomes"):
        answer({})


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("absorbing", [True], "absorbing gave"),
        ("done", [0.5, 0.5], "done gave float64"),
        ("reward", np.zeros((2, 3)), "reward gave"),
        ("reward", np.full((2, 1), np.nan), "finite"),
        ("legal", np.ones((2, 3), bool), "legal gave"),
        ("vectors", np.zeros((3, 2)), "vectors gave"),
    ],
)
def test_other_methods_are_checked(method, value, message):
    answers = Answers(Coin(**{method: lambda states: value}))
    with pytest.raises(ModelError, match=message):
        getattr(answers, method)(STATES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ()}, "0 agents"),
        ({"agents": ("a", "b")}, "2 agents, and num_actions"),
        ({"num_actions": (0,)}, "at least 1 each"),
        ({"sizes": ()}, "at least one value"),
        ({"sizes": (0, 2)}, "at least one value"),
        ({"sizes": (2**32, 2**31)}, r"2\^63"),
    ],
)
def test_what_a_model_says_of_itself(change, message):
    with pytest.raises(ModelError, match=message):
        checked_model(Coin(**change))


def test_a_model_without_sizes():
    class Bare(TransitionModel):
        agents = ("a",)
        num_actions = (1,)

    with pytest.raises(ModelError, match="has no `sizes`"):
        checked_model(Bare())


class One(IndependentModel):
    agents = ("a",)
    num_actions = (2,)
    sizes = (2,)

    def __init__(self, kernel):
        self.given = kernel

    def kernel(self, component):
        return self.given


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Kernel(np.arange(4), np.zeros(3, int), np.ones(3)), "5 that begin at 0"),
        (Kernel(np.arange(5), np.zeros(3, int), np.ones(3)), "offsets end at 4"),
        (Kernel(np.arange(5), np.array([0, 1, 2, 0]), np.ones(4)), "value 1, action 0: next value 2"),
        (
            Kernel(np.arange(5), np.zeros(4, int), np.array([1, 1, 1, 0.9])),
            "value 1, action 1: probabilities",
        ),
        (Kernel(np.array([0, 2, 3, 4, 5]), np.zeros(5, int), np.array([0.5, 0.5, 1, 1, 1])), "occurs twice"),
    ],
)
def test_kernels_are_checked(kernel, message):
    with pytest.raises(ModelError, match=message):
        checked_model(One(kernel))


def test_a_kernel_is_sorted_and_impossible_outcomes_go():
    kernel = Kernel(
        np.array([0, 2, 4, 5, 5]), np.array([1, 0, 1, 0, 0]), np.array([0.25, 0.75, 0.0, 1.0, 1.0])
    )
    checked = checked_model(One(kernel)).checked_kernels[0]
    assert checked.offsets.tolist() == [0, 2, 3, 4, 4]
    assert checked.next_state.tolist() == [0, 1, 0, 0]
    assert checked.probability.tolist() == [0.75, 0.25, 1.0, 1.0]


def test_movers_must_be_agents():
    model = One(Kernel.of_table(np.eye(2)[:, None].repeat(2, axis=1)))
    checked_model(model)
    type(model).movers = (1,)
    try:
        with pytest.raises(ModelError, match="movers"):
            checked_model(model)
    finally:
        del type(model).movers


def test_outcomes_of_lists():
    found = Outcomes.of_rows(
        [[((0, 1), 0.5, (1.0,), True), ((1, 1), 0.5, (2.0,), False)], [], [((0, 0), 1.0, (0.0,), False)]]
    )
    assert found.offsets.tolist() == [0, 2, 2, 3]
    assert found.next_states.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert found.reward.tolist() == [[1.0], [2.0], [0.0]]
    assert found.done.tolist() == [True, False, False]


def write_model(folder, body):
    path = folder / "world_file.py"
    path.write_text(body)
    return path


def test_models_are_loaded_from_files_and_modules(tmp_path, monkeypatch):
    path = write_model(
        tmp_path,
        "import numpy as np\nfrom omstore import TransitionModel\n"
        "class Mine(TransitionModel):\n    agents, num_actions = ('a',), (2,)\n"
        "    def __init__(self, size=3):\n        self.sizes = (size,)\n"
        "def broken():\n    raise RuntimeError('no')\nthree = 3\ndef other():\n    return 3\n",
    )
    model = load_model(f"{path}:Mine", {"size": 5})
    assert model.sizes == (5,)
    assert (model.origin.name, model.origin.parameters) == (f"{path}:Mine", {"size": 5})
    monkeypatch.chdir(tmp_path)
    assert load_model("world_file.py:Mine").origin.name == f"{path}:Mine"
    monkeypatch.syspath_prepend(tmp_path)
    assert load_model("world_file:Mine").origin.name == "world_file:Mine"
    for name, message in (
        ("world_file:missing", "has no missing"),
        ("world_file:three", "has no three"),
        ("world_file:other", "gives int, not a TransitionModel"),
        ("world_file:broken", "can't be made: RuntimeError: no"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(name)
    with pytest.raises(ModelError, match="doesn't take these parameters") as raised:
        load_model("world_file:Mine", {"width": 3})
    assert "size" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", "there is no model 'chess'"),
        ("no_such_module_here:make", "there is no module no_such_module_here"),
        ("no_such_file.py:make", "there is no file"),
        (":make", "there is no model"),
    ],
)
def test_models_that_are_not_there(name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name)


def test_a_file_that_fails_to_import(tmp_path):
    path = write_model(tmp_path, "raise ValueError('half a file')")
    with pytest.raises(ModelError, match="half a file"):
        load_model(f"{path}:make")


def test_errors_are_of_the_kinds_one_catches():
    assert issubclass(ModelError, ValueError)
    assert issubclass(UsageError, ValueError)
