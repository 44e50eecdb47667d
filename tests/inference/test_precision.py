"""bf16 on a processor is tried in a child process, which may die in our place."""

import pytest
import torch

from tests.training.support import make_trainer
from vitrail import VitrailError
from vitrail.inference import precision
from vitrail.inference.precision import choose_precision
from vitrail.reasons import Reason

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def answer() -> tuple[torch.dtype, Reason] | VitrailError:
    """To bf16 on this very processor."""
    try:
        return choose_precision("bf16", CPU)
    except VitrailError as error:
        return error


def test_bf16_on_this_very_processor_works_or_is_refused_with_the_reason(answer):
    if isinstance(answer, VitrailError):
        assert f" {precision.survives_bf16()};" in str(answer) and "--precision fp32" in str(answer)
    else:
        assert answer == (torch.bfloat16, Reason("bf16_trial"))


def test_bf16_works_when_the_processor_is_told_to_forget_amx(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert choose_precision("bf16", CPU)[0] == torch.bfloat16


@pytest.mark.parametrize(("trial", "code"), [("SIGILL", 132), ("SIGSEGV", 139)])
def test_a_child_that_dies_is_one_sentence(monkeypatch, trial, code):
    monkeypatch.setattr(precision, "TRIAL", f"import os, signal; os.kill(os.getpid(), signal.{trial})")
    with pytest.raises(VitrailError, match=rf" {code}; .*ONEDNN_MAX_CPU_ISA="):
        choose_precision("bf16", CPU)


def test_fp32_is_what_a_processor_gets_unless_asked():
    assert choose_precision("auto", CPU) == (torch.float32, Reason("fp32_cpu"))
    assert choose_precision("fp32", CPU) == (torch.float32, Reason("as_asked"))


def test_bf16_trains_and_keeps_its_weights_in_fp32(answer):
    if isinstance(answer, VitrailError):
        pytest.skip("this processor has no bf16")
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        trainer = make_trainer(epochs=3, batch_size=8, dtype=dtype)
        trainer.run()
        losses.append([row["train_loss"] for row in trainer.history])
        assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert losses[1] == pytest.approx(losses[0], abs=0.02) and losses[1] != losses[0]
