"""Test of the picture of Jacobi steps in docs/methods.md: it shows real tokens."""

import jacobi_step

import lantern


def test_the_steps_of_the_picture_emit_the_tokens_of_the_image():
    steps, codes = jacobi_step.record_steps(lantern.load("embedded"), jacobi_step.PROMPT)
    first, second = jacobi_step.choose_steps(steps, len(codes))
    assert second.number == first.number + 1 and second.first == first.end
    for step in (first, second):
        assert step.samples[: step.num_accepted + 1] == codes[step.first : step.end].tolist()
        assert step.drafts[: step.num_accepted] == step.samples[: step.num_accepted]
        assert step.drafts[step.num_accepted] != step.samples[step.num_accepted]
