"""What the command line answers to a slip of the fingers: a few lines about the verb that was meant."""

import pytest

from vitrail.cli import VERBS, main


def answer(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_misspelt_command_is_one_line_with_the_nearest(capsys):
    told = answer(capsys, "explian", "cat.jpg")
    assert told.count("\n") == 1 and told.endswith('Did you mean "explain"?\n')
    assert all(verb in told for verb in VERBS)
    told = answer(capsys, "data", "inspct", "pets")
    assert told == "vitrail: There is no command 'data inspct'; there is `vitrail data inspect`.\n"
    assert answer(capsys, "--modle", "x").startswith("vitrail: A command comes first, then its options")


def test_a_misspelt_option_is_about_its_own_verb(capsys):
    told = answer(capsys, "predict", "cat.jpg", "--modle", "deit")
    assert "--model STR" in told and "vitrail predict --help" in told
    assert not any(f"vitrail {verb} " in told for verb in VERBS if verb != "predict")


@pytest.mark.parametrize(("verb", "option"), [("explain", "--methods"), ("predict", "--fit"), ("train", "--head")])
def test_none_is_no_choice(verb, option, capsys):
    told = answer(capsys, verb, "cat.jpg", option, "relevanse")
    assert "invalid choice 'relevanse'" in told and "None" not in told


def test_an_option_without_a_value_of_its_own_is_left_out(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["predict", "--help"])
    told = capsys.readouterr().out
    assert stopped.value.code == 0 and "--model STR" in told and "{None}" not in told
