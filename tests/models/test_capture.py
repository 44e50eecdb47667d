"""`capture`: the true attention of the chosen layers, without touching any output."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.restatements import attention, image, norm, randomised
from tests.models.unfused import MODELS, SIZES, SWIN, VIT, as_tuple, close, joined, layers_of, model_of, run, unfused
from vitrail.errors import VitrailError
from vitrail.models import SwinTransformer, VisionTransformer, capture, create_model
from vitrail.models import attention as attention_module
from vitrail.models.attention_scores import ClassRows
from vitrail.models.tuning import tune


@pytest.mark.parametrize("size", SIZES, ids=["square", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_maps_are_the_unfused_attention_and_outputs_stay_as_they_are(name, size):
    model, x = model_of(name), image(2, 3, *size, dtype=torch.float32)
    with torch.no_grad():
        before = run(model, x)
        with capture(model) as maps:
            during = run(model, x)
        reference, expected = unfused(model)
        run(reference, x.double())
    assert list(maps) == list(range(len(layers_of(model)))) == list(range(len(expected)))
    for layer, map in maps.items():
        true = joined(expected[layer], map)
        assert map.dtype == torch.float32 and map.shape == true.shape
        assert (map.double() - true).abs().max() < 1e-5
        assert (map.sum(-1) - 1).abs().max() < 1e-5
    for a, b in zip(as_tuple(before), as_tuple(during), strict=True):
        assert torch.equal(a, b)
    assert not any(m.probes for m in layers_of(model))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("padding", ["torchvision", "timm"])
def test_captured_swin_maps_are_the_unfused_attention_of_every_window(version, padding):
    """With windows and masks read place by place, not taken from the model."""
    model = randomised(SwinTransformer(version=version, padding=padding, **SWIN))
    x = image(2, 3, 20, 28)  # 10×14 tokens: padded to 12×15, 4×5 windows of 3×3
    with capture(model, [1]) as maps:
        model(x)
    assert maps[1].shape == (2, 20, 2, 9, 9)
    first, m = model.blocks[:2]
    z = first(model.embed(x))
    z = norm(z, m.norm1) if version == 1 else z
    windows, labels = shifted_windows(z, padding)
    for w in range(20):
        mask = torch.tensor([[0.0 if a == b else -100.0 for b in labels[w]] for a in labels[w]], dtype=torch.float64)
        expected = attention(windows[w], m.attention, m.bias() + mask)[1]
        torch.testing.assert_close(maps[1][:, w].double(), expected, rtol=0, atol=1e-5)


def shifted_windows(z, padding):
    """The second block's windows of 3×3, shifted by 1, read place by place; and where each token was rolled from."""
    h, w = z.shape[1:3]
    windows, labels = [], []
    for top in range(0, 12, 3):
        for left in range(0, 15, 3):
            tokens, label = [], []
            for r in range(top, top + 3):
                for c in range(left, left + 3):
                    if padding == "torchvision":  # pad to 12×15, then roll
                        row, column = (r + 1) % 12, (c + 1) % 15
                        real = row < h and column < w
                    else:  # roll the 10×14 tokens, then pad
                        row, column = (r + 1) % h, (c + 1) % w
                        real = r < h and c < w
                    tokens.append(z[:, row, column] if real else torch.zeros_like(z[:, 0, 0]))
                    label.append((r >= 12 - 1, c >= 15 - 1))
            windows.append(torch.stack(tokens, 1))
            labels.append(label)
    return windows, labels


ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its kernels and its autocast")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("name", ["relative", "rotary", "swin_v1_timm"])
def test_under_autocast_a_map_is_the_exact_softmax_of_the_half_precision_queries(name, device, monkeypatch):
    model, x = model_of(name).to(device), image(2, 3, 18, 29, dtype=torch.float32).to(device)
    monkeypatch.setattr(attention_module, "suits", lambda qkv: False)  # PyTorch's kernel is the one that is heard
    seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def kernel(q, k, v, attn_mask=None, **options):
        seen.append((q, k, attn_mask, options["scale"]))
        return original(q, k, v, attn_mask=attn_mask, **options)

    with (
        torch.no_grad(),
        torch.autocast(device, torch.bfloat16),
        capture(model) as maps,
        capture(model, reduce=None if "swin" in name else "cls_row") as rows,
        pytest.MonkeyPatch.context() as p,
    ):
        before = run(model, x)
        p.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
        assert torch.equal(run(model, x), before)
    assert len(seen) == len(maps)
    for layer, (q, k, mask, scale) in enumerate(seen):
        assert q.dtype == torch.bfloat16 and maps[layer].dtype == torch.float32
        scores = q.double() @ k.double().transpose(-2, -1) * scale
        expected = (scores if mask is None else scores + mask.double()).softmax(-1)
        assert (maps[layer].reshape(expected.shape).double() - expected).abs().max() < 1e-5
        assert (maps[layer].sum(-1) - 1).abs().max() < 1e-5
        assert "swin" in name or (rows[layer].double() - expected[:, :, 0]).abs().max() < 1e-5


def test_only_the_chosen_layers_are_captured_and_may_be_counted_from_the_end():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with capture(model) as everything:
        model(x)
    with capture(model, layers=[-1, 0]) as maps:
        model(x)
    assert sorted(maps) == [0, 2] and maps[-1] is maps[2]
    assert torch.equal(maps[2], everything[2]) and not maps[2].requires_grad


def test_mae_counts_its_decoder_after_its_encoder():
    model, x = model_of("mae"), image(2, 3, 24, 24, dtype=torch.float32)
    with capture(model) as maps:
        run(model, x)
    assert [maps[i].shape[-1] for i in range(4)] == [1 + 9, 1 + 9, 1 + 36, 1 + 36]  # a quarter of 36 patches, then all
    assert maps.prefix == 1 and [maps.grid(i) for i in range(4)] == [(6, 6)] * 4


@pytest.mark.parametrize("name", ["relative", "qk_norm", "mae", "swin_v2_timm"])
def test_chosen_heads_are_those_of_the_whole_map(name):
    model, x = model_of(name), image(2, 3, 18, 29, dtype=torch.float32)
    with capture(model) as everything, capture(model, heads=[1, 0]) as both, capture(model, heads=[-1]) as last:
        run(model, x)
    for layer, map in everything.items():
        close(both[layer], map[..., [1, 0], :, :], atol=1e-6)
        close(last[layer], map[..., -1:, :, :], atol=1e-6)


def test_models_say_which_layer_to_look_at():
    assert model_of("learned").default_layer == 2
    assert model_of("mae").default_layer == 1
    assert model_of("swin_v1_timm").default_layer == 1
    assert SwinTransformer(**SWIN | {"depths": (2,), "heads": (2,)}).default_layer == 1
    with torch.device("meta"):
        assert create_model("vit_b16").default_layer == 11
        assert create_model("swin_t").default_layer == 9  # the last of the third stage
    mae = model_of("mae")
    assert (mae.prefix_tokens, mae.token_grid(18, 29)) == (1, (5, 8))


@pytest.mark.parametrize("name", ["learned", "relative", "registers", "mae"])
def test_the_class_row_is_the_first_row_of_the_map(name):
    model, x = model_of(name), image(2, 3, 18, 29, dtype=torch.float32)
    with capture(model) as maps, capture(model, reduce="cls_row") as rows:
        run(model, x)
    for layer, map in maps.items():
        close(rows[layer], map[:, :, 0], atol=1e-6)
        close(rows.row(layer), maps.row(layer, "class"), atol=1e-6)


class Calls(TorchDispatchMode):
    """How many operations run."""

    def __init__(self):
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_class_rows_of_many_layers_take_few_operations():
    """On a GPU it is the number of kernels that costs."""
    counts = []
    for depth in (2, 12):
        model, x = VisionTransformer(**VIT | {"depth": depth}).eval(), image(1, 3, 12, 12, dtype=torch.float32)
        with torch.no_grad(), Calls() as plain:
            model(x)
        with torch.no_grad(), capture(model, reduce="cls_row") as rows, Calls() as captured:
            model(x)
        assert sorted(rows) == list(range(depth))
        counts.append(captured.count - plain.count)
    assert counts[0] <= 20 and counts[1] - counts[0] <= 10  # for each layer more, its class row is selected: no kernel


ONE = 3 * 2 * 41 * 16 * 4  # bytes of one layer's q, k and v: two pictures, 41 tokens, width 16, fp32


@pytest.mark.parametrize(
    ("most", "waiting"), [(0, [[], [], []]), (2 * ONE - 1, [[0], [], []]), (2 * ONE, [[0], [0, 1], []])]
)
def test_class_rows_wait_for_one_another_up_to_a_bound(most, waiting, monkeypatch):
    model, x = model_of("learned"), image(2, 3, 18, 29, dtype=torch.float32)  # three layers
    monkeypatch.setattr(ClassRows, "most", most)
    with torch.no_grad(), capture(model) as maps, capture(model, reduce="cls_row", heads=[1], to="cpu") as rows:
        seen = []
        for block in model.blocks:
            block.register_forward_hook(lambda *_: seen.append([*rows.rows.waiting]))
        model(x)
    assert seen == waiting
    for layer, map in maps.items():
        close(rows[layer], map[:, 1:, 0], atol=1e-6)


def test_class_rows_of_a_part_of_the_model_can_be_read_while_the_capture_is_open():
    model, x = model_of("mae"), image(2, 3, 24, 24, dtype=torch.float32)
    with torch.no_grad(), capture(model, reduce="cls_row") as rows, capture(model) as maps:
        run(model, x)
        before = rows[0]
        model.encoder(x.flip(-1))  # the decoder, whose last layer is the last of all, does not run
        assert len(rows) == 4 and rows.get(7) is None
        close(rows[1], maps[1][:, :, 0], atol=1e-6)
        assert rows[0].shape != before.shape  # now of all patches
    assert not rows.rows.waiting


def test_class_rows_do_not_keep_a_graph_alive():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with capture(model, reduce="cls_row") as rows:
        model(x).sum().backward()
    assert not any(row.requires_grad for row in rows.values())


@pytest.mark.parametrize("name", ["learned", "relative", "mae", "swin_v1_timm", "swin_v2_torchvision_masked"])
def test_the_mean_of_the_heads_and_functions_reduce_the_map(name):
    model, x = model_of(name), image(2, 3, 18, 29, dtype=torch.float32)
    with (
        capture(model) as maps,
        capture(model, reduce="mean_heads") as mean,
        capture(model, reduce=lambda map: (map * map.clamp(min=1e-30).log()).sum(-1)) as function,
    ):
        run(model, x)
    for layer, map in maps.items():
        close(mean[layer], map.mean(-3), atol=1e-6)
        close(function[layer], torch.special.entr(map).neg().sum(-1), atol=1e-5)
        if name != "mae":  # which hides the first patch
            close(mean.row(layer, 0), maps.row(layer, 0).mean(1, keepdim=True), atol=1e-6)


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation makes, and how many of at least `least` numbers live at once."""

    def __init__(self, least):
        self.least, self.largest, self.most, self.living = least, 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.largest = max(self.largest, storage.nbytes() // 4)
                if storage.nbytes() >= 4 * self.least:
                    self.living[storage.data_ptr()] = weakref.ref(storage)
        self.most = max(self.most, sum(1 for r in self.living.values() if r() is not None))
        return out


def test_a_class_row_never_forms_the_matrix_and_the_mean_forms_one_head_at_a_time():
    model = VisionTransformer(**VIT | {"depth": 1, "width": 8}).eval()
    x = image(2, 3, 80, 80, dtype=torch.float32)  # 401 tokens
    n, sizes = 401, {}
    for reduce in ("cls_row", "mean_heads", None):
        with torch.no_grad(), capture(model, reduce=reduce), Sizes(least=2 * n * n) as sizes[reduce]:
            model(x)
    assert sizes["cls_row"].largest < 2 * n * 8 * 4 * 2  # no more than the MLP needs
    assert sizes["mean_heads"].largest == 2 * n * n and sizes["mean_heads"].most <= 2
    assert sizes[None].largest == 2 * 2 * n * n and sizes[None].most == 1


@pytest.mark.parametrize("name", ["learned", "mae", "swin_v1_timm"])
def test_a_function_that_asks_for_the_layout_gets_that_of_its_layer_in_every_forward(name):
    model = model_of(name)

    def grid(map, layout):
        return layout.grid, map.shape[-1], layout.places

    with capture(model, reduce=grid) as maps:
        for size in ((12, 12), (18, 29)):  # twice: what is there from the first must not be taken for the second
            run(model, image(1, 3, *size, dtype=torch.float32))
            for layer, (found, tokens, places) in maps.items():
                assert found == maps.grid(layer) and not callable(places)
                assert places is None or places.shape[-1] == tokens - len(maps.layouts[layer].prefix)
    if name == "swin_v1_timm":
        assert maps[0][0] == (9, 15) and maps[-1][0] == (5, 8)
    else:
        assert maps[0][0] == maps[-1][0] == model_grid(model, 18, 29)


def model_grid(model, height, width):
    return getattr(model, "encoder", model).token_grid(height, width)


def test_a_function_gets_the_layout_beside_the_gradient_too():
    model, x = model_of("learned"), image(1, 3, 12, 20, dtype=torch.float32)
    with capture(model, reduce=lambda map, gradient, layout: (layout.grid, gradient.shape), gradients=True) as maps:
        model(x).sum().backward()
    assert {value for value in maps.values()} == {((3, 5), (1, 2, 16, 16))}


@pytest.mark.parametrize("name", ["learned", "swin_v1_timm"])
def test_maps_of_a_model_with_prompts_are_of_its_own_tokens_and_rows_miss_what_prompts_get(name):
    model, x = model_of(name), image(2, 3, 12, 12, dtype=torch.float32)
    with capture(model) as plain:
        run(model, x)
    tune(model, "prompt", tokens=5)
    with capture(model) as maps, capture(model, reduce=lambda map, layout: layout.prompts) as prompts:
        run(model, x)
    for layer, map in maps.items():
        assert map.shape == plain[layer].shape and prompts[layer] == 5
        assert map.sum(-1).min() > 0 and map.sum(-1).max() < 1 - 1e-3
    # In the first layer nothing has changed but that prompts take their share.
    close(maps[0] / maps[0].sum(-1, keepdim=True), plain[0], atol=1e-5)


def test_maps_are_moved_as_they_are_made():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with capture(model, to="meta") as maps, capture(model, to="cpu", reduce=lambda map: ("kept", map.shape)) as others:
        model(x)
    assert {map.device.type for map in maps.values()} == {"meta"}
    assert others[0] == ("kept", (1, 2, 10, 10))  # what a function returns need not be a tensor


def test_capture_ends_even_when_something_fails_inside():
    model, x = model_of("learned"), image(1, 3, 12, 12, dtype=torch.float32)
    with pytest.raises(VitrailError, match="Expected 3 channels"), capture(model) as maps:
        model(x)
        assert all(m.probes for m in layers_of(model))
        model(image(1, 4, 12, 12))
    assert sorted(maps) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError), capture(model, reduce=lambda map: 1 / 0):
        model(x)
    assert not any(m.probes for m in layers_of(model))


def test_captures_inside_one_another_all_see_what_runs_in_them():
    model, x, other = model_of("learned"), *(image(1, 3, 12, 12, seed=s, dtype=torch.float32) for s in (1, 2))
    with capture(model) as outer:
        with capture(model, [1]) as inner:
            model(x)
            assert torch.equal(outer[1], inner[1])
        model(other)
    assert sorted(outer) == [0, 1, 2] and list(inner) == [1]
    assert (outer[1] - inner[1]).abs().max() > 1e-3
    first, second = capture(model), capture(model)  # these two cross
    one, two = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    model(x)
    second.__exit__(None, None, None)
    assert not one and sorted(two) == [0, 1, 2]
    assert not any(m.probes for m in layers_of(model))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": [3]}, "has layers 0 to 2; there is no layer 3"),
        ({"layers": [0, -4]}, "has layers 0 to 2, from the end -1 to -3; there is no layer -4"),
        ({"layers": [0.0]}, r"layers must be a list of whole numbers, got \[0.0\]"),
        ({"heads": [0, 2]}, "Layer 0 has heads 0 to 1; there is no head 2"),
        ({"heads": []}, r"heads=\[\] names no head to capture; leave it out"),
        ({"heads": "0"}, "heads must be a list of whole numbers, got '0'"),
        ({"reduce": "rows"}, "reduce='rows' is not known"),
        ({"to": "disk"}, "to='disk' is not a device"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_what_can_not_be_captured_is_refused_before_anything_runs(options, sentence):
    model = model_of("learned")
    with pytest.raises(VitrailError, match=sentence):
        capture(model, **options).__enter__()
    assert not any(m.probes for m in layers_of(model))


def test_one_layer_and_one_head_may_be_named_without_a_list():
    model, x = model_of("learned"), image(1, 3, 24, 24, dtype=torch.float32)
    with capture(model) as whole, capture(model, layers=1, heads=0) as one:
        model(x)
    assert sorted(one) == [1] and torch.equal(one[1], whole[1][:, :1])


def test_maps_are_printed_as_one_line():
    model, x = model_of("learned"), image(1, 3, 24, 24, dtype=torch.float32)
    with capture(model, layers=[0, -1]) as maps:
        assert repr(maps) == "AttentionMaps(none of 3 layers yet)"
        model(x)
    assert str(maps) == f"AttentionMaps(layers 0, 2: {[*maps[0].shape]})"
    assert "grid" not in repr(maps.layouts) and repr(maps.layouts) == "Layers(layers 0, 2: TokenLayout)"
    with capture(model, reduce="cls_row") as maps:
        model(x)
    assert str(maps) == f"AttentionMaps(layers 0 to 2: {[*maps[0].shape]})"
    with capture(model, layers=[1], reduce=lambda a: a.mean().item()) as maps:
        model(x)
    assert str(maps) == "AttentionMaps(layer 1: float)"


def test_a_head_that_only_later_stages_of_swin_have_is_refused_for_the_earlier():
    model, x = model_of("swin_v1_timm"), image(1, 3, 24, 24, dtype=torch.float32)
    with pytest.raises(VitrailError, match="Layer 0 has heads 0 to 1; there is no head 3"):
        capture(model, heads=[3]).__enter__()
    with capture(model, layers=[2, 3], heads=[3]) as maps:
        model(x)
    assert maps[2].shape[2] == 1


def test_a_model_without_attention_of_ours_is_refused():
    with pytest.raises(VitrailError, match="Linear has no attention layer"):
        capture(torch.nn.Linear(2, 2)).__enter__()


@pytest.mark.parametrize("name", ["no_class_token", "swin_v1_timm"])
def test_a_class_row_without_a_class_token_says_what_to_use(name):
    model, x = model_of(name), image(1, 3, 24, 24, dtype=torch.float32)
    sentence = 'no class token for reduce="cls_row"; use "mean_heads"'
    with pytest.raises(VitrailError, match=sentence), capture(model, reduce="cls_row"):
        model(x)
    with capture(model) as maps:
        model(x)
    with pytest.raises(VitrailError, match=r"no class token; choose a patch as \(row, column\)"):
        maps.row(0)


@ON_GPU
@pytest.mark.parametrize("name", ["relative", "distilled", "mae", "swin_v1_timm", "swin_v2_torchvision"])
def test_maps_on_the_gpu_are_the_same_and_change_nothing(name):
    model, x = model_of(name), image(2, 3, 18, 29, dtype=torch.float32)
    with torch.no_grad(), capture(model) as expected:
        run(model, x)
    model, x = model.cuda(), x.cuda()
    for precision in (torch.float32, torch.bfloat16):
        with torch.no_grad(), torch.autocast("cuda", precision, enabled=precision == torch.bfloat16):
            before = run(model, x)
            with capture(model, to="cpu") as maps, capture(model) as there:
                during = run(model, x)
        assert all(torch.equal(*pair) for pair in zip(as_tuple(before), as_tuple(during), strict=True))
        for layer, map in expected.items():
            assert maps[layer].device.type == "cpu" and there[layer].is_cuda
            assert maps[layer].dtype == torch.float32 and (maps[layer].sum(-1) - 1).abs().max() < 1e-5
            assert precision == torch.bfloat16 or (maps[layer] - map).abs().max() < 1e-5
            token = "class" if maps.prefix else (1, 2)
            assert torch.equal(there.row(layer, token).cpu(), maps.row(layer, token))
