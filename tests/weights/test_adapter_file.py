"""The small file: what it holds, where it finds its base, which bases it refuses; and PEFT's folders, both ways."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import vitrail
from tests.models.test_tuning import pictures, small, stir
from vitrail.errors import VitrailError
from vitrail.models.tuning import PARTS, learns, merge, tune
from vitrail.weights import model_from, read_checkpoint, save_weights
from vitrail.weights.adapter_file import Adapters, base_of, fingerprint, read_adapter, save_adapter
from vitrail.weights.peft import load_peft, save_peft

KINDS = ("head", "adapter", "lora", "prompt", "bias")


def make(folder: Path, kind: str, base: Path, seed: int = 0, classes: int = 3, **changes) -> nn.Module:
    """A tuned model on the base, and its adapter file."""
    torch.manual_seed(seed)
    checkpoint = read_checkpoint(base)
    model = model_from(checkpoint, "new", num_classes=classes, **changes)
    named = base_of(checkpoint, model, kind)
    tune(model, kind)
    stir(model)
    labels = [f"{kind} {i}" for i in range(classes)]
    save_adapter(model, folder / "adapter.safetensors", kind, named, labels, name="vit_nano4", about={"note": kind})
    return model.eval()


@pytest.fixture
def base(tmp_path) -> Path:
    return save_weights(small("vit"), tmp_path / "base" / "base.safetensors")


@torch.no_grad()
def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


@pytest.mark.parametrize("kind", KINDS)
def test_adapter_and_base_are_the_model_again(tmp_path, base, kind):
    model = make(tmp_path, kind, base)
    path = tmp_path / "adapter.safetensors"
    with safe_open(path, "pt") as file:
        names = list(file.keys())
    assert sorted(names) == sorted(n for n in model.state_dict() if learns(n, kind))
    predictor = vitrail.load(path, base=base, device="cpu")
    x = pictures(model)
    assert torch.equal(answer(predictor.model, x), answer(model, x))
    assert predictor.labels == [f"{kind} {i}" for i in range(3)]
    assert predictor.about["note"] == kind


def test_the_base_is_known_by_its_weights_in_any_dialect(tmp_path, base):
    model = make(tmp_path, "lora", base)
    other = save_weights(model_from(read_checkpoint(base)), tmp_path / "theirs.pth", dialect="timm")
    found = vitrail.load(tmp_path / "adapter.safetensors", base=other, device="cpu")
    x = pictures(model)
    assert torch.equal(answer(found.model, x), answer(model, x))


def test_it_stands_on_a_base_that_was_fitted_to_another_size(tmp_path, base):
    model = make(tmp_path, "adapter", base, image_size=24)
    assert len(read_adapter(tmp_path).base.hashes) == 2
    save_weights(model, tmp_path / "model.safetensors")  # as a run has it
    x = pictures(model)
    for found in (
        vitrail.load(tmp_path / "adapter.safetensors", device="cpu"),
        vitrail.load(tmp_path / "adapter.safetensors", base=base, device="cpu"),
    ):
        assert torch.equal(answer(found.model, x), answer(model, x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_is_found_beside_it_in_the_run_and_in_the_hubs_cache(tmp_path, base, kind, monkeypatch):
    run = tmp_path / "run"
    model = make(run, kind, base)
    x = pictures(model)
    path = run / "adapter.safetensors"

    def found() -> bool:
        return torch.equal(answer(vitrail.load(path, device="cpu").model, x), answer(model, x))

    with pytest.raises(VitrailError, match=r"needs its base, .* in base.safetensors \(sha256 .*neither beside it nor"):
        found()
    shutil.copy(base, run / "base.safetensors")
    assert found()
    (run / "base.safetensors").unlink()
    (run / "run.json").write_text(json.dumps({"recipe": {"weights": str(base)}}))
    assert found()
    (run / "run.json").unlink()
    # The complete bundle of the run holds the base, unless LoRA is merged or biases have moved.
    save_weights(model, run / "model.safetensors")
    if kind == "bias":
        with pytest.raises(VitrailError, match="needs its base"):
            found()
    else:
        assert found()
    (run / "model.safetensors").unlink()

    # The hub's cache, as huggingface_hub lays it out.
    cache = tmp_path / "cache" / "models--someone--small"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    shutil.copytree(base.parent, cache / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    checkpoint = read_checkpoint(base)
    named = base_of(checkpoint, model_from(checkpoint), kind, "hf://someone/small")
    save_adapter(model, path, kind, named, name="vit_nano4")
    assert found()


def test_another_base_is_refused_in_a_sentence(tmp_path, base):
    make(tmp_path, "adapter", base)
    other = model_from(read_checkpoint(base))
    with torch.no_grad():
        other.position.table[0, 0, 0] += 1e-6
    wrong = save_weights(other, tmp_path / "wrong.safetensors")
    with pytest.raises(VitrailError, match=r"belongs to another base: to base.safetensors, whose sha256") as refused:
        vitrail.load(tmp_path / "adapter.safetensors", base=wrong)
    assert "\n" not in str(refused.value)
    with pytest.raises(VitrailError, match="belongs to another base"):
        Adapters(other).add("a", tmp_path / "adapter.safetensors")
    shutil.copy(wrong, tmp_path / "model.safetensors")  # another model beside it is passed over
    with pytest.raises(VitrailError, match="needs its base"):
        vitrail.load(tmp_path / "adapter.safetensors")


def test_several_adapters_on_one_base_are_switched_by_name(tmp_path, base):
    models = {kind: make(tmp_path / kind, kind, base, seed, seed + 2) for seed, kind in enumerate(KINDS)}
    predictor = vitrail.load(base, device="cpu")
    own = {n: t for n, t in predictor.model.named_parameters() if not n.startswith("head")}
    x = pictures(predictor.model)
    first = answer(predictor.model, x)
    for kind in KINDS:
        predictor.adapt(kind, tmp_path / kind)
    for kind in ("lora", "bias", "prompt", "lora", "adapter", "head", "bias"):
        predictor.use(kind)
        assert torch.equal(answer(predictor.model, x), answer(models[kind], x)), kind
        assert predictor.labels[0] == f"{kind} 0" and predictor.about["note"] == kind
        same = {n: p for n, p in predictor.model.named_parameters() if n in own}
        assert all(same[n] is own[n] for n in own)  # neither read nor copied
    predictor.use(None)
    assert torch.equal(answer(predictor.model, x), first)
    assert len(predictor.labels) == 5 and predictor.model.settings.tuning is None
    with pytest.raises(VitrailError, match=r"There is no adapter 'lorra'; added: head, .* Did you mean \"lora\"\?"):
        predictor.use("lorra")


@pytest.mark.parametrize("kind", ["lora", "head"])
def test_an_adapter_can_be_added_and_replaced_while_one_is_in_use(tmp_path, base, kind):
    first, second = (make(tmp_path / str(seed), kind, base, seed, classes=3 + seed) for seed in (0, 1))
    predictor = vitrail.load(base, device="cpu")
    x = pictures(predictor.model)
    predictor.adapt("a", tmp_path / "0")
    predictor.use("a")
    predictor.adapt("b", tmp_path / "1")
    assert torch.equal(answer(predictor.model, x), answer(first, x))
    predictor.adapt("a", tmp_path / "1")  # the same name: in use is what was added last
    assert torch.equal(answer(predictor.model, x), answer(second, x))
    assert answer(predictor.model, x).shape[1] == len(predictor.labels) == 4


def test_what_is_no_adapter_is_refused_in_a_sentence(tmp_path, base):
    predictor = vitrail.load(base, device="cpu")
    with pytest.raises(VitrailError, match="is no adapter of ours"):
        predictor.adapt("a", base)
    with pytest.raises(VitrailError, match="There is no file"):
        predictor.adapt("a", tmp_path / "nothing.safetensors")
    make(tmp_path, "lora", base)
    with pytest.raises(VitrailError, match="is an adapter without its base"):
        vitrail.load_weights(predictor.model, tmp_path / "adapter.safetensors")
    with pytest.raises(VitrailError, match="tuned in full has no adapter"):
        save_adapter(predictor.model, tmp_path / "x.safetensors", "full", read_adapter(tmp_path).base)


@pytest.mark.parametrize("name", ["relative", "swin", "swinv2"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_bundle_with_parts_is_complete_by_itself(tmp_path, name, kind):
    model = tune(small(name), kind)
    stir(model)
    path = save_weights(model, tmp_path / "model.safetensors")
    x = pictures(model)
    loaded = vitrail.load(path, device="cpu")
    assert torch.equal(answer(loaded.model, x), answer(model, x))
    assert loaded.model.settings == model.settings
    for dialect in ("timm", "hf"):
        with pytest.raises(VitrailError):
            save_weights(model, tmp_path / f"{dialect}.out", dialect=dialect)


def test_lora_that_another_dialect_has_no_place_for_is_written_once_merged(tmp_path):
    path = tmp_path / "timm.safetensors"
    with pytest.raises(VitrailError, match=r"no place for blocks.*prompts; our own file has"):
        save_weights(tune(small("vit"), "prompt"), path, dialect="timm")
    model = tune(small("vit"), "lora")
    stir(model)
    x = pictures(model)
    expected = answer(model, x)
    with pytest.raises(VitrailError, match=r"lora_b; write it into the weights with vitrail\.models\.merge\(model\)"):
        save_weights(model, path, dialect="timm")
    other = small("vit")
    vitrail.load_weights(other, save_weights(merge(model), path, dialect="timm"))
    assert (answer(other, x) - expected).abs().max() < 1e-4


@pytest.mark.data
def test_the_files_of_deit_tiny_are_below_two_megabytes(tmp_path, real_data):
    checkpoint = read_checkpoint(real_data / "deit_tiny_in1k", "deit_ti16")
    for kind in KINDS:
        model = model_from(checkpoint, "new", num_classes=37)
        before = fingerprint(model.state_dict(), kind)
        named = base_of(checkpoint, model, kind)
        tune(model, kind)
        path = save_adapter(model, tmp_path / f"{kind}.safetensors", kind, named)
        assert path.stat().st_size < 2_000_000
        assert before == fingerprint(model.state_dict(), kind) and len(named.hashes) == 1


# -- PEFT ------------------------------------------------------------------------------------------------------------

PEERS = [
    ("timm", "vit", {"targets": ("qkv", "proj", "mlp"), "scale": 2.0}),
    ("timm", "distilled", {"targets": ("qkv",)}),
    ("timm", "swin", {"targets": ("qkv", "mlp")}),
    ("hf", "vit", {"targets": ("qkv", "proj", "mlp"), "scale": 0.5}),
    ("hf", "swin", {"targets": ("qkv", "proj", "mlp")}),
    ("hf", "swinv2", {"targets": ("qkv", "mlp")}),
]


def peer(dialect: str, name: str, model: nn.Module, folder: Path) -> nn.Module:
    """The same base in timm or transformers."""
    if dialect == "hf":
        import transformers

        save_weights(model, folder / "theirs", dialect="hf")
        return transformers.AutoModelForImageClassification.from_pretrained(folder / "theirs").eval()
    import timm

    s = model.settings
    shape = {
        "img_size": s.image_size,
        "num_classes": s.num_classes,
        "patch_size": s.patch_size,
        "mlp_ratio": s.mlp_ratio,
    }
    if name == "swin":
        theirs = timm.models.SwinTransformer(
            **shape, embed_dim=s.width, depths=s.depths, num_heads=s.heads, window_size=7
        )
    else:
        kind = timm.models.VisionTransformerDistilled if name == "distilled" else timm.models.VisionTransformer
        theirs = kind(**shape, embed_dim=s.width, depth=s.depth, num_heads=s.heads)
    save_weights(model, folder / "theirs.pth", dialect="timm")
    theirs.load_state_dict(torch.load(folder / "theirs.pth"), strict=name != "swin")
    return theirs.eval()


def logits(output) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize(("dialect", "name", "options"), PEERS)
def test_peft_loads_ours_and_we_load_pefts(tmp_path, dialect, name, options):
    import peft  # ten seconds, so not above

    model = small(name)
    h, w = model.settings.image_size
    x = torch.randn(2, 3, h, w)
    plain = peer(dialect, name, model, tmp_path)
    with torch.no_grad():
        assert (logits(plain(x)) - model(x)).abs().max() < 1e-4
    bare = model.state_dict()
    bare = {n: t.clone() for n, t in bare.items()}

    tune(model, "lora", rank=3, **options)
    stir(model)
    folder = save_peft(model, tmp_path / "ours", dialect)
    theirs = peft.PeftModel.from_pretrained(plain, folder).eval()
    with torch.no_grad():
        assert (logits(theirs(x)) - model(x)).abs().max() < 1e-4

    # And back: what PEFT has trained, on a fresh model of ours.
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if "lora_" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(tmp_path / "back")
    again = small(name)
    again.load_state_dict(bare)
    load_peft(again, tmp_path / "back")
    with torch.no_grad():
        assert (logits(theirs(x)) - again(x)).abs().max() < 1e-4
        assert (again(x) - model(x)).abs().max() > 1e-2
        apart = again(x)
        assert (merge(again)(x) - apart).abs().max() < 1e-4


def test_of_q_and_v_alone_with_unequal_alphas_the_product_stays_exact(tmp_path):
    """transformers' usual choice, with a rank per layer and the rsLoRA rule."""
    import peft  # ten seconds, so not above

    model = small("vit")
    theirs = peer("hf", "vit", model, tmp_path)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"], rank_pattern={"1.attention.v_proj": 2},
        alpha_pattern={"1.attention.v_proj": 5}, use_rslora=True, modules_to_save=["classifier"],
        init_lora_weights=False,
    )  # fmt: skip
    theirs = peft.get_peft_model(theirs, config).eval()
    theirs.save_pretrained(tmp_path / "qv")
    load_peft(model, tmp_path / "qv")
    assert model.settings.tuning.rank == 8 and model.settings.tuning.targets == ("qkv",)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert (logits(theirs(x)) - model(x)).abs().max() < 1e-4


def test_peft_folders_that_do_not_fit_are_refused_in_a_sentence(tmp_path):
    model = tune(small("vit"), "lora")
    folder = save_peft(model, tmp_path / "a")
    with pytest.raises(VitrailError, match="num_classes=5"):
        load_peft(vitrail.create_model("vit_nano4", num_classes=2), folder)
    with pytest.raises(VitrailError, match="for another model"):
        load_peft(vitrail.create_model("vit_nano4", num_classes=5, width=32), folder)
    with pytest.raises(VitrailError, match="which this model does not have"):
        load_peft(small("swin"), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(VitrailError, match="use_dora=True; only plain LoRA"):
        load_peft(small("vit"), folder)
    with pytest.raises(VitrailError, match=r"has no adapter_config\.json"):
        load_peft(small("vit"), tmp_path)
    with pytest.raises(VitrailError, match="PEFT's format is for LoRA, and this model has sequential adapters"):
        save_peft(tune(small("vit"), "adapter"), tmp_path / "b")
    with pytest.raises(VitrailError, match="past PEFT"):
        save_peft(tune(small("swinv2"), "lora"), tmp_path / "b")
