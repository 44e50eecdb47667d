"""APCER, BPCER and their kin: by hand on small cases, beside scikit-learn where they overlap."""

import math

import numpy as np
import pytest
import torch

from vitrail.report.content import ReportContent
from vitrail.report.model_report import page
from vitrail.report.numbers import THIN
from vitrail.tasks.spoof.metrics import Scored, attack_scores
from vitrail.tasks.spoof.objective import Spoof, even_weights
from vitrail.tasks.spoof.page import shown, spoof_content

# Four live faces, three prints, two replays; from 0.5 on it is called an attack.
SCORES = [0.1, 0.2, 0.3, 0.6, 0.4, 0.7, 0.9, 0.35, 0.45]
ATTACKS = ["", "", "", "", "print", "print", "print", "replay", "replay"]


def test_the_errors_at_a_threshold_are_those_counted_by_hand():
    errors = Scored(SCORES, ATTACKS).errors(0.5)
    assert errors["bpcer"] == pytest.approx(1 / 4)  # the live face of 0.6
    assert errors["apcer/print"] == pytest.approx(1 / 3)  # the print of 0.4
    assert errors["apcer/replay"] == pytest.approx(2 / 2)
    assert errors["apcer"] == pytest.approx(1.0)  # the worst type
    assert errors["acer"] == pytest.approx((1.0 + 0.25) / 2)
    assert errors["hter"] == pytest.approx((3 / 5 + 0.25) / 2)  # all attacks together


def test_a_score_on_the_threshold_is_an_attack():
    errors = Scored([0.5, 0.5], ["", "print"]).errors(0.5)
    assert (errors["bpcer"], errors["apcer"]) == (1.0, 0.0)


def test_the_equal_error_rate_lies_where_both_errors_meet():
    # Between 0.35 and 0.4 one of five attacks passes (0.35) and one of four live faces is turned away (0.6).
    curve = Scored(SCORES, ATTACKS).curve()
    assert curve.threshold == pytest.approx(0.375)
    assert curve.eer == pytest.approx((1 / 5 + 1 / 4) / 2)


def test_kinds_that_are_wholly_apart_have_no_error_and_a_threshold_half_way_between():
    curve = Scored([0.1, 0.2, 0.8, 0.9], ["", "", "print", "print"]).curve()
    assert (curve.eer, curve.auc, curve.threshold) == (0.0, 1.0, 0.5)


def test_scores_that_say_nothing_are_chance():
    curve = Scored([0.5] * 6, ["", "", "", "print", "print", "print"]).curve()
    assert (curve.eer, curve.auc) == (0.5, 0.5)
    assert math.isfinite(curve.threshold)


def test_bpcer_at_an_apcer_lets_no_type_pass_more_often():
    # Twenty attacks of each kind at 0.31…0.50 and 0.61…0.80; live faces at 0.305, 0.325, 0.345 … : ten of them.
    prints, replays = np.arange(31, 51) / 100, np.arange(61, 81) / 100
    live = np.arange(305, 500, 20) / 1000
    scored = Scored(np.r_[live, prints, replays], [""] * 10 + ["print"] * 20 + ["replay"] * 20)
    assert scored.bpcer_at(0.01) == pytest.approx(0.9)  # not one print may pass: all live faces but that of 0.305
    assert scored.bpcer_at(0.05) == pytest.approx(0.9)  # one print: up to 0.32, still only that of 0.305
    assert scored.bpcer_at(0.10) == pytest.approx(0.8)  # two prints: up to 0.33
    # Of all 40 attacks together, four would be a tenth: the worst type is stricter.
    assert Scored(np.r_[live, prints, replays], [""] * 10 + ["any"] * 40).bpcer_at(0.10) == pytest.approx(0.7)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auc_eer_and_the_curve_are_those_of_scikit_learn(seed):
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(seed)
    attacked = rng.random(400) < 0.6
    scores = np.round(rng.normal(attacked * 0.8, 1.0), 2)  # rounded, so that there are ties
    scored = Scored(scores, ["print" if a else "" for a in attacked])
    false, true, _ = roc_curve(attacked, scores, drop_intermediate=False)
    curve = scored.curve()
    assert curve.auc == pytest.approx(roc_auc_score(attacked, scores), abs=1e-12)
    assert np.allclose(curve.bpcer[::-1], false, atol=1e-12)
    assert np.allclose(1 - curve.apcer[::-1], true, atol=1e-12)
    meet = np.argmin(np.abs(false - (1 - true)))
    assert curve.eer == pytest.approx((false[meet] + 1 - true[meet]) / 2, abs=1e-12)
    for level in (0.01, 0.05, 0.10):
        assert scored.bpcer_at(level) == pytest.approx(false[1 - true <= level + 1e-12].min(), abs=1e-12)


def test_weights_count_a_face_as_often_as_they_say():
    plain = Scored([0.1, 0.6, 0.6, 0.6, 0.4, 0.9, 0.9], ["", "", "", "", "print", "print", "print"])
    weighted = Scored([0.1, 0.6, 0.4, 0.9], ["", "", "print", "print"])
    weights = np.array([1.0, 3, 1, 2])
    assert weighted.curve(weights).auc == pytest.approx(plain.curve().auc)
    assert weighted.curve(weights).eer == pytest.approx(plain.curve().eer)
    assert weighted.errors(0.5, weights) == pytest.approx(plain.errors(0.5))


def test_intervals_are_over_people_not_over_pictures():
    """Twenty pictures of each face are worth no more than one: the interval stays as wide."""
    rng = np.random.default_rng(0)
    attacks = ["", "print"] * 15
    scores = rng.normal([0.8 * (a != "") for a in attacks], 0.6)
    people = [str(n // 2) for n in range(30)]
    once = Scored(scores, attacks, people).figures(0.5, rounds=300)
    often = Scored(np.tile(scores, 20), attacks * 20, people * 20).figures(0.5, rounds=300)
    nameless = Scored(np.tile(scores, 20), attacks * 20).figures(0.5, rounds=300)
    for name in ("eer", "hter", "acer", "auc"):
        assert once[f"{name}_low"] < once[name] < once[f"{name}_high"]
        assert often[f"{name}_low"] == pytest.approx(once[f"{name}_low"])
        assert often[f"{name}_high"] == pytest.approx(once[f"{name}_high"])
    width, narrow = (found["hter_high"] - found["hter_low"] for found in (often, nameless))
    assert width > 3 * narrow
    assert (often["subjects"], often["n"], often["live"], often["attacks"]) == (15, 600, 300, 300)


def test_the_standard_error_of_auc_counts_people_and_not_their_pictures():
    rng = np.random.default_rng(0)
    people = [str(number) for number in range(12) for _ in range(2)]
    scores, attacks = rng.normal(size=24) + np.tile([0, 1.5], 12), ["", "print"] * 12
    once = Scored(scores, attacks, people).auc_error(300)
    assert 0.02 < once < 0.2
    assert Scored(np.tile(scores, 20), attacks * 20, people * 20).auc_error(300) == pytest.approx(once)
    assert Scored(np.tile(scores, 20), attacks * 20).auc_error(300) < once / 3
    assert np.isnan(Scored([0.1, 0.7], ["", ""]).auc_error())


def test_one_kind_alone_has_only_the_error_that_can_be_counted():
    figures = Scored([0.1, 0.7], ["", ""]).figures(0.5)
    assert figures["bpcer"] == 0.5
    assert figures.keys() & {"eer", "auc", "apcer", "acer", "hter", "bpcer_at_apcer_1"} == set()


def test_people_are_listed_by_their_errors():
    scored = Scored([0.1, 0.9, 0.6, 0.2, 0.8], ["", "print", "", "print", "print"], ["a", "a", "b", "b", "b"])
    first, second = scored.by_subject(0.5)
    assert (first["subject"], first["bpcer"], first["apcer"], first["errors"]) == ("b", 1.0, 0.5, 2)
    assert (second["subject"], second["bpcer"], second["apcer"], second["errors"]) == ("a", 0.0, 0.0, 0)


def test_the_score_keeps_its_digits_at_both_ends():
    rows = np.array([[1.0, 1e-30, 2e-30], [1e-12, 0.5, 0.5]])
    low, high = attack_scores(rows)
    assert low == pytest.approx(3e-30)
    assert 1 - high == pytest.approx(1e-12, rel=1e-3)


def test_an_attack_without_a_label_still_counts_as_one():
    task = Spoof(["live", "print"])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.5, 0.0]])
    figures = task.score(logits, task.targets([(0,), (1,), ()]))
    chance = torch.sigmoid(torch.tensor([2.0, 1.0, -1.5])).double()  # of what each truly is
    loss = (-chance[0].log() - chance[1:].log().mean()) / 2
    assert figures["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert figures["auc"] == 1.0 and task.figure == "auc"


def test_live_faces_are_drawn_as_often_as_all_attacks_together():
    labels = [(0,)] * 10 + [(1,)] * 30 + [(3,)] * 5  # nothing of type 2
    weights = even_weights(labels, 4)
    sums = [weights[:10].sum(), weights[10:40].sum(), weights[40:].sum()]
    assert np.allclose(np.array(sums) / sum(sums), [0.5, 0.25, 0.25])


def test_any_threshold_has_its_place_on_the_curve():
    scored = Scored(SCORES, ATTACKS)
    curve = scored.curve()
    for threshold in (0.0, 0.1, 0.36, 0.375, 0.4, 0.5, 0.9, 1.0):
        taken = np.array(SCORES) >= threshold
        at = scored.place(threshold)
        assert curve.bpcer[at] == pytest.approx(taken[:4].mean())
        assert curve.apcer[at] == pytest.approx((~taken[4:]).mean())


def test_the_charts_and_tables_of_a_report_say_what_was_counted():
    people = ["ann", "ann", "bob", "bob", "ann", "ann", "bob", "ann", "bob"]
    content = spoof_content(Scored(SCORES, ATTACKS, people), 0.5, "chosen elsewhere")
    keys = [key for key, _, _ in content["sections"]]
    assert keys == ["scores", "attacks", "subjects"]
    charts, types, subjects = (html for _, _, html in content["sections"])
    assert "Scores of 4 live faces and 5 attacks; above the threshold lie 25.0" in charts
    assert f"at the threshold 60.0{THIN}% of the attacks and 25.0{THIN}% of the live faces" in charts
    assert types.index("replay") < types.index("print") and f"33.3{THIN}%" in types  # the worst first
    assert "2 of 2 subjects with an error" in subjects
    # The farthest on the wrong side first: the replay of 0.35, the live face of 0.6 and print of 0.4 are as far.
    assert [card.index for card in content["mistakes"]] == [7, 4, 3, 8]
    assert [(p.true, p.predicted) for p in content["mistakes"][:3]] == [
        ("replay", "live"), ("print", "live"), ("live", "attack"),
    ]  # fmt: skip
    report = page(ReportContent("x", shown(Scored(SCORES, ATTACKS).figures(0.5)), "9 faces", ["live"], **content))
    assert 'id="subjects"' in report and "BPCER at APCER 5" in report and ">threshold<" not in report
