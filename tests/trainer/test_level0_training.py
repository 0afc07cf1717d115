"""Level 0's training: against a plain loop of PyTorch, its counts, and going on where it stopped."""

from __future__ import annotations

import io

import numpy as np
import pytest

from omstore.errors import UsageError

torch = pytest.importorskip("torch")

from trainer.buffer import OMBuffer  # noqa: E402
from trainer.level0_training import Level0Config, Level0Trainer  # noqa: E402
from trainer.models import ImaginedOpponent, OpponentMLP  # noqa: E402

WIDTH, ACTIONS = 10, 6


def one_hot_data(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One-hot states, actions of a known stochastic behaviour, and that behaviour."""
    rng = np.random.default_rng(seed)
    behaviour = rng.dirichlet(np.full(ACTIONS, 0.7), WIDTH)
    which = rng.integers(0, WIDTH, count)
    actions = (rng.random((count, 1)) > np.cumsum(behaviour[which], axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
    return np.eye(WIDTH, dtype=np.uint8)[which], actions, behaviour


def filled(count: int, seed: int = 0) -> OMBuffer:
    states, actions, _ = one_hot_data(count, seed)
    buffer = OMBuffer(count, WIDTH, num_actions=ACTIONS)
    buffer.add(states, actions)
    return buffer


def trained(buffer: OMBuffer, config: Level0Config, hidden: int = 24) -> tuple[Level0Trainer, list[float]]:
    trainer = Level0Trainer(OpponentMLP(WIDTH, ACTIONS, hidden, seed=1), buffer, config)
    losses = []
    while not trainer.finished:
        losses.append(trainer.step())
    return trainer, losses


def weights(trainer: Level0Trainer) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in trainer.model.parameters()]


def equal_to_the_bit(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize(
    ("count", "held_out", "batch", "epochs", "samples", "updates"),
    [
        (1000, 0.0, 100, 3, 1000, 30),
        (1001, 0.0, 100, 3, 1001, 33),
        (999, 0.0, 100, 3, 999, 30),
        (1000, 0.1, 100, 1, 900, 9),
        (1000, 0.25, 1024, 2, 750, 2),
        (1, 0.9, 5, 1, 1, 1),  # something is always trained on
    ],
)
def test_counts(count: int, held_out: float, batch: int, epochs: int, samples: int, updates: int) -> None:
    trainer, losses = trained(filled(count), Level0Config(epochs, batch, held_out=held_out))
    assert (trainer.samples, len(trainer.held_out)) == (samples, count - samples)
    assert trainer.updates == trainer.num_updates == len(losses) == updates
    assert trainer.epoch == epochs - 1
    with pytest.raises(UsageError, match=f"update {updates} isn't within 0 to {updates - 1}"):
        trainer.step()


def test_every_epoch_takes_every_training_sample_once_in_another_order() -> None:
    trainer = Level0Trainer(
        OpponentMLP(WIDTH, ACTIONS, 8), filled(103), Level0Config(3, 10, held_out=0.1, seed=5)
    )
    held_out = set(trainer.held_out.tolist())
    assert len(held_out) == 10
    orders = []
    for epoch in range(3):
        batches = [trainer.batch_indices(epoch * 10 + i).tolist() for i in range(10)]
        assert [len(batch) for batch in batches] == [10] * 9 + [3]
        orders.append([index for batch in batches for index in batch])
        assert sorted(orders[-1]) == sorted(set(range(103)) - held_out)
    assert orders[0] != orders[1] != orders[2] != sorted(orders[2])
    backwards = [trainer.batch_indices(update).tolist() for update in reversed(range(30))]
    assert [index for batch in reversed(backwards) for index in batch] == [*orders[0], *orders[1], *orders[2]]
    other = Level0Trainer(
        OpponentMLP(WIDTH, ACTIONS, 8), filled(103), Level0Config(3, 10, held_out=0.1, seed=6)
    )
    assert set(other.held_out.tolist()) != held_out


def test_the_same_as_a_plain_loop_over_floats() -> None:
    """All samples as floats, textbook Adam in float64, the learning rate by hand."""
    states, actions, _ = one_hot_data(300)
    config = Level0Config(2, 64, lr=0.01, held_out=0.1, seed=2)
    trainer, losses = trained(filled(300), config)
    start = OpponentMLP(WIDTH, ACTIONS, 24, seed=1).double()
    parameters = list(start.parameters())
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    x, y = torch.from_numpy(states).double(), torch.from_numpy(actions)
    for update in range(trainer.num_updates):
        chosen = trainer.batch_indices(update).astype(np.int64)
        log_p = torch.log_softmax(start(x[chosen]), dim=1)
        loss = -log_p[torch.arange(len(chosen)), y[chosen]].mean()
        assert losses[update] == pytest.approx(float(loss.detach()), abs=2e-5)
        gradients = torch.autograd.grad(loss, parameters)
        lr = 0.01 * (1 - update / 10)  # 2 epochs of ceil(270 / 64) updates
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                m_hat, v_hat = m / (1 - 0.9 ** (update + 1)), v / (1 - 0.999 ** (update + 1))
                p -= lr * m_hat / (v_hat.sqrt() + 1e-8)
    for found, expected in zip(weights(trainer), parameters, strict=True):
        assert np.allclose(found, expected.detach().numpy(), atol=1e-4)
    last_epoch = [trainer.batch_indices(update) for update in range(5, 10)]
    mean = sum(loss * len(chosen) for loss, chosen in zip(losses[5:], last_epoch, strict=True)) / 270
    assert trainer.loss == pytest.approx(mean, rel=1e-12)
    with torch.no_grad():
        held = trainer.held_out.astype(np.int64)
        expected_loss = float(torch.nn.functional.cross_entropy(start(x[held]), y[held]))
    report = trainer.report()
    assert report.held_out_loss == pytest.approx(expected_loss, abs=1e-4)
    assert (report.updates, report.samples, report.held_out_samples) == (10, 270, 30)


@pytest.mark.parametrize("stop", [0, 1, 4, 5, 6, 14])
def test_going_on_after_a_stop_gives_the_same_to_the_bit(stop: int) -> None:
    buffer, config = filled(300), Level0Config(3, 64, held_out=0.1, seed=2)
    whole, losses = trained(buffer, config)
    begun = Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 24, seed=1), buffer, config)
    for _ in range(stop):
        begun.step()
    saved = io.BytesIO()
    torch.save(begun.state_dict(), saved)
    saved.seek(0)
    resumed = Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 24, seed=99), filled(300), config)
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    assert resumed.updates == stop
    rest = []
    while not resumed.finished:
        rest.append(resumed.step())
    assert rest == losses[stop:]
    assert equal_to_the_bit(weights(resumed), weights(whole))
    assert resumed.report() == whole.report()


def test_a_stop_under_other_settings_is_refused() -> None:
    trainer = Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 8), filled(50), Level0Config(batch=10))
    state = trainer.state_dict()
    for buffer, config in ((filled(50), Level0Config(batch=11)), (filled(51), Level0Config(batch=10))):
        with pytest.raises(UsageError, match="can't go on"):
            Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 8), buffer, config).load_state_dict(state)


def test_threads_change_nothing() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            trainer, _ = trained(filled(2000), Level0Config(1, 1000), hidden=128)
            found.append(weights(trainer))
            assert torch.get_num_threads() == threads, "set for the update only"
    finally:
        torch.set_num_threads(before)
    assert equal_to_the_bit(*found)


def test_it_learns_the_behaviour() -> None:
    """The least cross-entropy is the behaviour's entropy: reached within 1% on samples never trained on."""
    states, actions, behaviour = one_hot_data(60_000)
    buffer = OMBuffer(60_000, WIDTH, num_actions=ACTIONS)
    buffer.add(states, actions)
    model = ImaginedOpponent(WIDTH, ACTIONS, 64, seed=0)
    calls = []
    report = model.fit_level0(
        buffer, Level0Config(4, 256, held_out=0.2), on_update=lambda trainer: calls.append(trainer.updates)
    )
    assert calls == list(range(1, report.updates + 1))
    held_out = Level0Trainer(model.level(0), buffer, Level0Config(4, 256, held_out=0.2)).held_out
    of_samples = behaviour[states[held_out].argmax(axis=1)]
    best = -np.log(of_samples[np.arange(len(held_out)), actions[held_out]]).mean()
    assert report.held_out_loss is not None
    assert best * 0.995 < report.held_out_loss < best * 1.01
    assert np.allclose(model.action_probabilities(np.eye(WIDTH)).numpy(), behaviour, atol=0.04)


def test_evaluate_is_the_mean_whatever_the_samples() -> None:
    trainer, _ = trained(filled(200), Level0Config(1, 50, held_out=0))
    assert np.isnan(trainer.evaluate())
    assert trainer.report().held_out_loss is None
    chosen = np.arange(0, 200, 3)
    batch = trainer.buffer.sample(chosen)
    with torch.no_grad():
        log_p = torch.log_softmax(trainer.model(batch.state), dim=1).double()
    expected = -float(log_p[torch.arange(len(chosen)), batch.action].mean())
    assert trainer.evaluate(chosen) == pytest.approx(expected, abs=1e-6)


def test_a_fresh_trainer_has_no_loss_yet_and_an_empty_buffer_is_refused() -> None:
    assert np.isnan(Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 8), filled(5), Level0Config()).loss)
    with pytest.raises(UsageError, match="not 0"):
        Level0Trainer(OpponentMLP(WIDTH, ACTIONS, 8), OMBuffer(5, WIDTH, num_actions=ACTIONS), Level0Config())


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch": 0},
        {"lr": 0.0},
        {"held_out": 1.0},
        {"held_out": -0.1},
        {"seed": -1},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Level0Config(**wrong)  # type: ignore[arg-type]
