"""The list of verbs and options, frozen: a change of it is a change for every user, and shows here."""

import inspect
import subprocess
import sys

from vitrail.cli.demo import demo
from vitrail.cli.models import models
from vitrail.cli.predict import predict

OPTIONS = {
    predict: ["images", "model", "top", "csv", "json", "architecture", "image_size", "batch_size", "device"],
    models: ["pattern"],
    demo: ["out"],
}


def test_the_verbs_are_these():
    done = subprocess.run([sys.executable, "-m", "vitrail", "--help"], capture_output=True, text=True, check=True)
    assert "{predict,models,demo}" in done.stdout


def test_the_options_of_every_verb_are_these():
    for verb, options in OPTIONS.items():
        assert list(inspect.signature(verb).parameters) == options
