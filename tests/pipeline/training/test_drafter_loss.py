"""Tests of the validation of the draft model against a slow count."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_codes import make_dataset, make_recipe, make_target
from lantern.models.draft import DraftModel
from lantern.sampling import SamplingConfig
from lantern_pipeline.training.drafter import DrafterTrainer
from lantern_pipeline.training.drafter_loss import DrafterValidation, run_target, unroll
from lantern_pipeline.training.loop import run_training

SAMPLING = SamplingConfig(temperature=0.0, top_k=3, cfg_scale=2.0)


def make_parts(sampling=SAMPLING, num_held_out=5, **settings) -> tuple[DrafterTrainer, DrafterValidation]:
    target = make_target()
    recipe = make_recipe(**{"num_steps": 60, "batch_size": 2, "warmup": 5, "cfg_scale": 2.0, **settings})
    trainer = DrafterTrainer(DraftModel.from_target(target, 0), target, make_dataset(), recipe, 0)
    return trainer, DrafterValidation(trainer.loss, target, make_dataset(num_held_out), sampling)


def softmax_of_top(logits: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.full_like(logits, float("-inf"))
    best = logits.topk(k).indices
    kept[best] = logits[best]
    return kept.softmax(0)


@pytest.mark.parametrize("loss", ["guided", "published"])
def test_acceptance_and_agreement_are_those_counted_one_position_at_a_time(loss):
    trainer, validate = make_parts(loss=loss)
    found = validate()
    target = trainer.target
    overlaps, agreements = {1: [], 2: [], 3: []}, {1: [], 2: [], 3: []}
    dataset = make_dataset(5)
    for image in range(5):
        codes, mask, hidden = run_target(target, *dataset.batch(torch.tensor([image])), with_null=True)
        with torch.no_grad():
            for depth, predicted in enumerate(unroll(trainer.model, codes, mask, hidden, 3), start=1):
                for row in range(depth - 1, 3):  # row n predicts token n + 1
                    (with_t, null_t), (with_p, null_p) = hidden[:, 3 + row], predicted[:, row]
                    wanted = target.head(null_t + 2.0 * (with_t - null_t))
                    drafted = target.head(null_p + 2.0 * (with_p - null_p))
                    both = torch.minimum(softmax_of_top(wanted, 3), softmax_of_top(drafted, 3))
                    overlaps[depth].append(both.sum().item())
                    agreements[depth].append(float(wanted.argmax() == drafted.argmax()))
    means = {depth: sum(values) / len(values) for depth, values in overlaps.items()}
    for depth in (1, 2, 3):
        assert found[f"val_acceptance_{depth}"] == pytest.approx(means[depth], abs=1e-5)
        assert found[f"val_greedy_{depth}"] == pytest.approx(sum(agreements[depth]) / len(agreements[depth]))
    length = 1 + means[1] + means[1] * means[2] + means[1] * means[2] * means[3]
    assert found["val_expected_length"] == pytest.approx(length, abs=1e-4)


@pytest.mark.parametrize("loss", ["guided", "published"])
def test_the_loss_is_that_of_training_without_noise(loss):
    trainer, validate = make_parts(loss=loss, num_held_out=64)
    settings = {"loss": loss, "batch_size": 64, "cfg_scale": 2.0}
    plain = DrafterTrainer(trainer.model, trainer.target, make_dataset(), make_recipe(**settings), 0)
    loss, _ = plain.loss(*plain._batch(0))  # one epoch, in some order
    assert validate()["val_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_training_raises_acceptance_and_leaves_its_trace_in_the_history():
    trainer, validate = make_parts(batch_size=8, learning_rate=0.01)
    before = validate()
    last = run_training(trainer, 60, name="drafter", validate=validate)[-1]
    assert last["val_acceptance_1"] > before["val_acceptance_1"] + 0.1
    assert last["val_expected_length"] > before["val_expected_length"] + 0.2
    assert last["val_loss"] < before["val_loss"]


def test_measuring_changes_nothing():
    trainer, validate = make_parts(precision="bfloat16")
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert validate() == validate()
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert trainer.step(0)["loss"] > 0


def test_an_unguided_run_is_measured_without_the_null_caption():
    _, validate = make_parts(sampling=SamplingConfig(), loss="published")
    _, guided = make_parts(loss="published")
    assert validate()["val_acceptance_1"] != guided()["val_acceptance_1"]


def test_acceptance_is_measured_at_temperature_1_whatever_decoding_has():
    cold, warm = (make_parts(SamplingConfig(temperature, top_k=3, cfg_scale=2.0))[1]() for temperature in (0.5, 1.0))
    assert cold == warm


def test_without_guidance_every_row_of_the_guided_loss_counts():
    """Branches with the null caption are predicted as well, although nothing is subtracted from them."""
    trainer, _ = make_parts(cfg_scale=1.0)
    codes, mask, hidden, _ = trainer._batch(0)
    other = hidden.clone()
    other[len(codes) :] += 1  # inputs of the draft model in the null branch
    assert trainer.loss(codes, mask, hidden, other)[1].tolist() != trainer.loss(codes, mask, hidden, hidden)[1].tolist()
