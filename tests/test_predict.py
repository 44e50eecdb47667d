"""The predictor and its verb as users meet them, on real weights and real pictures where they are there."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.functional import five_crop

import vitrail
from tests.parity.peers import shake
from vitrail.data import fit_image, prepare, to_tensor
from vitrail.inference.decoding import views
from vitrail.models import Preprocessing

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def predictor():
    model = shake(vitrail.create_model("vit_ti16", depth=2, num_classes=3))
    return vitrail.Predictor(model, Preprocessing(), ["ant", "bee", "猫"], "vit_ti16", device="cpu")


@pytest.fixture
def photo():
    noise = np.random.default_rng(0).integers(0, 256, (240, 300, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.mark.data
def test_deit_tiny_reaches_its_accuracy_on_real_images_and_agrees_with_timm(real_data):
    predictor = vitrail.load(real_data / "deit_tiny_in1k", device="cpu")
    assert predictor.name == "deit_ti16"
    peer = timm.create_model("deit_tiny_patch16_224").eval()
    peer.load_state_dict(load_file(real_data / "deit_tiny_in1k" / "model.safetensors"), strict=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=peer))
    files = sorted((real_data / "imagenet_val_1k").glob("*/*.jpg"))[::2]  # of 1000, of every other class
    truth = torch.tensor([int(f.parent.name) for f in files])
    assert len(files) == 500

    found = torch.tensor([best.index for best, *_ in predictor.predict(files, top=1)])
    assert 344 <= int((found == truth).sum()) <= 346  # of all 1000, 70.2 % are right
    theirs = []
    with torch.inference_mode():
        for start in range(0, 500, 100):  # a quarter of them, of all classes alike
            batch = torch.stack([transform(Image.open(f).convert("RGB")) for f in files[start : start + 100 : 4]])
            theirs.append(peer(batch).argmax(dim=1))
    assert int((found[::4] == torch.cat(theirs)).sum()) >= 124  # of 125


def test_every_kind_of_input_gives_the_same_prediction(predictor, photo, tmp_path):
    photo.save(tmp_path / "photo.png")
    array = np.asarray(photo)
    kinds = [
        tmp_path / "photo.png",
        str(tmp_path / "photo.png"),
        (tmp_path / "photo.png").read_bytes(),
        bytearray((tmp_path / "photo.png").read_bytes()),
        photo,
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
    ]
    alone = [predictor.predict(kind) for kind in kinds]
    with (tmp_path / "photo.png").open("rb") as file:
        assert predictor.predict(file) == alone[0]
    assert all(result == alone[0] for result in alone)
    assert [len(result) for result in alone] == [1] * len(kinds)
    together = predictor.predict(kinds, batch_size=4)
    assert [ranked[0].label for ranked in together] == [alone[0][0][0].label] * len(kinds)


def test_predictions_are_probabilities_in_order(predictor, photo):
    (ranked,) = predictor.predict(photo, top=5)
    assert sum(p.probability for p in ranked) == pytest.approx(1.0, abs=1e-6)
    assert [p.probability for p in ranked] == sorted((p.probability for p in ranked), reverse=True)
    assert all(p.label == predictor.labels[p.index] for p in ranked)


def test_embedding_is_what_the_head_sees(predictor, photo):
    features = predictor.embed([photo, photo])
    assert features.shape == (2, 192)
    with torch.no_grad():
        logits = predictor.model.head(features)
    (ranked,) = predictor.predict(photo)
    assert logits[0].softmax(0).max().item() == pytest.approx(ranked[0].probability, abs=1e-5)


def test_a_saved_predictor_comes_back_whole(predictor, photo, tmp_path):
    again = vitrail.load(predictor.save(tmp_path / "model.safetensors"), device="cpu")
    assert (again.labels, again.preprocessing, again.name) == (predictor.labels, predictor.preprocessing, "vit_ti16")
    assert again.predict(photo) == predictor.predict(photo)


class Run:
    """As `vitrail.train` returns one."""

    def __init__(self, folder):
        self.folder = folder

    def __fspath__(self):
        return str(self.folder)


def test_a_run_is_loaded_by_its_bundle_whatever_else_lies_in_its_folder(predictor, photo, tmp_path):
    about = {"task": "classify", "metrics": {"val_top1": 0.9}, "recipe": {"epochs": 3}}
    vitrail.Predictor(predictor.model, Preprocessing(), predictor.labels, "vit_ti16", "cpu", about).save(
        tmp_path / "model.safetensors"
    )
    torch.save({"model": {"x": torch.zeros(1)}}, tmp_path / "last.pt")
    for name in ("metrics.jsonl", "report.html", "other.safetensors"):
        (tmp_path / name).write_text("not a model")
    for source in (tmp_path, str(tmp_path), Run(tmp_path), Run(tmp_path / "model.safetensors")):
        again = vitrail.load(source, device="cpu")
        assert (again.about, again.labels) == (about, predictor.labels)
    assert again.predict(photo) == predictor.predict(photo)
    assert vitrail.load_weights(vitrail.create_model("vit_ti16", depth=2, num_classes=3), Run(tmp_path)).used > 10
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(vitrail.VitrailError, match="has kept no model yet"):
        vitrail.load(tmp_path)


def test_what_a_run_says_of_itself_must_be_json(predictor, tmp_path):
    with pytest.raises(vitrail.VitrailError, match="`about` must hold what JSON can"):
        vitrail.save_weights(predictor.model, tmp_path / "m.safetensors", about={"model": predictor})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def many_labels(predictor):
    about = {"multi_label": True, "thresholds": [0.99, 0.01, 0.3]}
    return vitrail.Predictor(predictor.model, Preprocessing(), predictor.labels, device="cpu", about=about)


def test_each_label_of_several_has_its_own_probability_and_threshold(many_labels, photo):
    with torch.no_grad():
        expected = many_labels.model(prepare(photo, Preprocessing())).sigmoid()
    torch.testing.assert_close(many_labels.probabilities(photo), expected)
    assert expected[0, 0] < 0.99 and expected[0, 1] > 0.01
    (found,) = many_labels.predict(photo)
    above = [i for i in expected[0].argsort(descending=True).tolist() if expected[0, i] >= [0.99, 0.01, 0.3][i]]
    assert [p.index for p in found] == above and 0 not in above
    assert [p.probability for p in found] == pytest.approx([expected[0, i].item() for i in above])
    assert [len(one) for one in many_labels.predict([photo, photo], top=2)] == [2, 2]

    strict = vitrail.Predictor(many_labels.model, Preprocessing(), device="cpu", about={"multi_label": True})
    assert strict.thresholds == [0.5, 0.5, 0.5]
    strict.about["thresholds"] = [1.0] * 3
    assert strict.predict(photo) == [[]]
    strict.about["thresholds"] = [1.0]
    with pytest.raises(vitrail.VitrailError, match="3 classes but 1 thresholds"):
        strict.predict(photo)


def test_probabilities_and_features_are_those_of_prepare_and_the_model(predictor, photo):
    images = [photo, photo.rotate(90, expand=True), photo.resize((64, 64))]
    with torch.no_grad():
        x = prepare(images, predictor.preprocessing)
        logits, features = predictor.model(x), predictor.model.features(x)["pooled"]
    assert torch.equal(predictor.probabilities(images), logits.softmax(dim=1))
    assert torch.equal(predictor.embed(images), features)
    assert predictor.embed(images).requires_grad is False
    torch.nn.Linear(192, 2)(predictor.embed(images)).sum().backward()  # a probe may learn from them


def test_flip_is_the_mean_over_the_image_and_its_mirror_image(predictor, photo):
    with torch.no_grad():
        x = prepare(photo, predictor.preprocessing)
        chances = [predictor.model(y).softmax(dim=1) for y in (x, x.flip(-1))]
        features = [predictor.model.features(y)["pooled"] for y in (x, x.flip(-1))]
    assert (chances[0] - chances[1]).abs().max() > 1e-4
    torch.testing.assert_close(predictor.probabilities(photo, flip=True), (chances[0] + chances[1]) / 2)
    torch.testing.assert_close(predictor.embed(photo, flip=True), (features[0] + features[1]) / 2)
    (ranked,) = predictor.predict(photo, flip=True)
    assert sum(p.probability for p in ranked) == pytest.approx(1, abs=1e-6)


def test_five_crops_are_the_centre_and_the_corners_of_the_resized_image(photo):
    """As torchvision's FiveCrop after Resize; 300×240 is brought to 310×248."""
    pre = Preprocessing()
    resized = photo.resize((310, 248), Image.Resampling.BICUBIC)
    top_left, top_right, bottom_left, bottom_right, centre = five_crop(resized, [224, 224])
    expected = [centre, top_left, top_right, bottom_left, bottom_right]
    assert [view.tobytes() for view in views(photo, pre, 5)] == [view.tobytes() for view in expected]
    assert len(views(photo, pre, 9)) == 9
    assert [view.tobytes() for view in views(photo, pre)] == [fit_image(photo, pre).tobytes()]


@pytest.mark.parametrize("crop", [0.875, 1.0])
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch", "native"])
def test_crops_are_averaged_under_every_fit(predictor, photo, fit, crop):
    pre = Preprocessing(size=(64, 64), fit=fit, crop=crop)
    several = vitrail.Predictor(predictor.model, pre, predictor.labels, device="cpu")
    seen = views(photo.resize((150, 120)), pre, 5)
    assert len({view.size for view in seen}) == 1
    assert len({view.tobytes() for view in seen}) == 5
    with torch.no_grad():
        chances = predictor.model(torch.stack([to_tensor(view, pre) for view in seen])).softmax(dim=1)
    found = several.probabilities(photo.resize((150, 120)), crops=5)
    torch.testing.assert_close(found, chances.mean(dim=0, keepdim=True))


def test_images_taken_as_they_are_may_differ_in_size(predictor, photo):
    native = vitrail.Predictor(predictor.model, Preprocessing(fit="native"), predictor.labels, device="cpu")
    images = [photo, photo.resize((40, 90)), photo, photo.resize((5, 5))]
    with torch.no_grad():
        expected = [predictor.model(prepare(one, native.preprocessing)).softmax(dim=1)[0] for one in images[:3]]
    with pytest.warns(UserWarning, match="smaller than one patch"):
        found = native.probabilities(images, on_error="skip")
    torch.testing.assert_close(found[:3], torch.stack(expected))
    assert found[3].isnan().all()


def test_a_side_below_one_patch_is_refused_at_loading(predictor, tmp_path):
    bundle, (side, _) = predictor.save(tmp_path / "model.safetensors"), predictor.model.settings.patch_size
    with pytest.raises(
        vitrail.VitrailError, match=f"image_size {side - 1}×{side} is smaller than one patch of {side}×{side}"
    ):
        vitrail.load(bundle, device="cpu", image_size=(side - 1, side))


def test_the_way_an_image_is_fitted_can_be_chosen_at_loading(predictor, photo, tmp_path):
    bundle = predictor.save(tmp_path / "model.safetensors")
    padded = vitrail.load(bundle, device="cpu", fit="pad")
    assert padded.preprocessing == Preprocessing(fit="pad")
    assert padded.predict(photo) != predictor.predict(photo)
    with pytest.raises(vitrail.VitrailError, match='Did you mean "pad"'):
        vitrail.load(bundle, fit="pads")


def test_a_bad_image_is_an_error_or_leaves_a_gap(predictor, photo, tmp_path):
    photo.save(tmp_path / "good.png")
    (tmp_path / "broken.jpg").write_bytes(b"not a picture")
    Image.new("L", (1, 9000)).save(tmp_path / "line.png")  # decodes, and can't be fitted
    names = ["good.png", "broken.jpg", "line.png", "good.png"]
    paths = [tmp_path / name for name in names]
    with pytest.raises(vitrail.VitrailError, match=r"broken\.jpg"):
        predictor.predict(paths)
    with pytest.warns(UserWarning) as warned:
        found = predictor.predict(paths, on_error="skip", batch_size=2)
    assert [len(one) for one in found] == [3, 0, 0, 3]
    assert found[0] == found[3]
    assert [name for name in ("broken.jpg", "line.png") for w in warned if name in str(w.message)] == names[1:3]
    with pytest.warns(UserWarning):
        rows = predictor.embed([str(path) for path in paths], on_error="skip")
    assert rows.isnan().all(dim=1).tolist() == [False, True, True, False]
    with pytest.warns(UserWarning), pytest.raises(vitrail.VitrailError, match="None of the 2 images can be read"):
        predictor.embed(paths[1:3], on_error="skip")
    outcomes = list(predictor.stream(paths))
    assert [one.image for one in outcomes] == paths
    assert [one.error is None for one in outcomes] == [True, False, False, True]


def test_what_the_model_refuses_is_named_too(predictor, photo, tmp_path):
    photo.save(tmp_path / "odd.png")

    def refuse(x):
        raise vitrail.VitrailError("An image of this size is refused.")

    (one,) = predictor._outcomes([tmp_path / "odd.png"], refuse, 1, False, 1)
    assert str(one.error) == f"{tmp_path / 'odd.png'}: An image of this size is refused."


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch", "native"])
def test_a_picture_without_pixels_is_one_sentence(predictor, fit):
    fitted = vitrail.Predictor(predictor.model, Preprocessing(fit=fit), predictor.labels, device="cpu")
    with pytest.raises(vitrail.VitrailError, match=r"An image of 5×0 \(height×width\) has no pixels"):
        fitted.predict(Image.new("RGB", (0, 5)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_in_bf16_and_agrees_with_the_cpu(predictor, photo):
    on_gpu = vitrail.Predictor(copy.deepcopy(predictor.model), Preprocessing(), predictor.labels, device="cuda")
    found, expected = on_gpu.probabilities(photo, flip=True), predictor.probabilities(photo, flip=True)
    assert found.dtype == torch.float32 and found.device.type == "cpu"
    assert 0 < (found - expected).abs().max() < 2e-2


def test_images_are_read_as_they_are_needed_and_no_further(predictor):
    taken = 0

    def pictures():
        nonlocal taken
        while True:  # without end
            taken += 1
            yield np.full((30, 30, 3), taken % 256, np.uint8)

    outcomes = predictor.stream(pictures(), "features", batch_size=4)
    first = [next(outcomes) for _ in range(9)]
    outcomes.close()
    assert taken <= 9 + 4 * 4
    expected = predictor.embed([np.full((30, 30, 3), i, np.uint8) for i in range(1, 10)])
    torch.testing.assert_close(torch.stack([one.values for one in first]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere/model.safetensors", "There is no file nowhere/model.safetensors."),
        ("checkpoints/vit_b16.pth", "There is no file checkpoints/vit_b16.pth."),
        ("timm/vit_base_patch16_224.orig_in21k", "for the hub write hf://timm/vit_base_patch16_224.orig_in21k"),
        ("vit_base_patch16_384", "No public weights are recorded for vit_base_patch16_384"),
        ("swin_base_patch4_window12_384", "No public weights are recorded for swin_base_patch4_window12_384"),
        ("vit_b61", 'Did you mean "vit_b16"?'),
        ("cpvt_ti16", "No public weights are recorded for cpvt_ti16"),
    ],
)
def test_a_source_that_leads_nowhere_is_one_sentence(source, sentence):
    with pytest.raises(vitrail.VitrailError) as error:
        vitrail.load(source)
    assert sentence in str(error.value)


def command(*arguments):
    done = subprocess.run([sys.executable, "-m", "vitrail", *map(str, arguments)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done


def test_models_verb_prints_the_counts():
    done = command("models", "deit_ti16")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == (
        "deit_ti16       5.7 M          1.3 G     197  224×224  apache-2.0  timm/deit_tiny_patch16_224.fb_in1k"
    )


@pytest.mark.parametrize(
    "call",
    [{"images": []}, {"batch_size": 0}, {"batch_size": -1}, {"top": 0}, {"crops": 4}, {"on_error": "ignore"}],
    ids=str,
)
def test_a_call_that_asks_for_nothing_is_one_sentence(predictor, photo, call):
    with pytest.raises(vitrail.VitrailError):
        predictor.predict(**{"images": photo, **call})
