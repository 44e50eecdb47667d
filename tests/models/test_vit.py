"""The Vision Transformer against the paper's equations in float64; then sizes, features, and what training adds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.restatements import attention, class_logits, image, linear, mlp, norm, randomised, vit_tokens
from vitrail.models import MaskedAutoencoder, create_model
from vitrail.models.vit import VisionTransformer, ViTSettings

TINY = {"image_size": (12, 20), "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "num_classes": 5}  # grid 3×5


def tiny(**changes):
    return randomised(VisionTransformer(**{**TINY, **changes}))


def learned_rows(model):
    """What to add to the patches and to the tokens in front of them."""
    rows = model.position.prefix_rows
    return {"add": model.position.table[0, rows:], "prefix_rows": model.position.table[0, :rows] if rows else None}


def exact(actual, expected, tolerance=1e-10):
    assert expected.std() > 0.01  # not a comparison of zeros
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def test_restated_attention_is_torchs_own():
    """So that no test here leans on a mistake in the restatement."""
    m, z, bias = tiny().blocks[0].attention, image(2, 7, 16), image(2, 7, 7, seed=9)
    theirs = nn.MultiheadAttention(16, 2, batch_first=True).double().eval()
    names = {"in_proj_weight": m.qkv.weight, "in_proj_bias": m.qkv.bias}
    theirs.load_state_dict(names | {f"out_proj.{k}": v for k, v in m.proj.state_dict().items()})
    for b in (None, bias):
        mask = None if b is None else b.repeat(2, 1, 1)  # [B·H, N, N]
        expected, weights = theirs(z, z, z, attn_mask=mask, average_attn_weights=False)
        output, maps = attention(z, m, b)
        exact(output, expected, 1e-12)
        exact(maps, weights, 1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"patch_embed": "linear", "patch_size": (4, 10), "channels": 5},
        {"qk_norm": True},
        {"layer_scale": 1e-5},
        {"activation": "swiglu", "mlp_ratio": 8 / 3},
        {"activation": "quick_gelu"},
        {"activation": "gelu_tanh"},
        {"activation": "relu"},
        {"qkv_bias": "qv"},
        {"qkv_bias": False, "patch_bias": False},
        {"registers": 3},
        {"position_prefix": False},
        {"norm_before": True, "norm_eps": 1e-2},
        {"distillation_token": True},
    ],
    ids=lambda c: ",".join(c) or "plain",
)
def test_logits_are_the_papers_equations(changes):
    model = tiny(**changes)
    x = image(2, model.settings.channels, 12, 20)
    exact(model.forward_heads(x)[0], class_logits(model, vit_tokens(model, x, **learned_rows(model))))


def test_layer_scale_starts_where_it_was_set():
    model = VisionTransformer(**TINY, layer_scale=1e-5)
    gammas = [p for name, p in model.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 4 and all(torch.equal(p, torch.full((16,), 1e-5)) for p in gammas)


def test_post_norm_blocks_are_the_original_transformers():
    model, z = tiny(norm_first=False, norm_eps=1e-5), image(2, 9, 16)
    assert model.norm is None
    for block in model.blocks:
        theirs = nn.TransformerEncoderLayer(16, 2, 64, 0.0, F.gelu, 1e-5, batch_first=True, norm_first=False).double()
        pairs = [
            (theirs.self_attn.in_proj_weight, block.attention.qkv.weight),
            (theirs.self_attn.in_proj_bias, block.attention.qkv.bias),
        ]
        for ours, their in (
            (block.attention.proj, theirs.self_attn.out_proj),
            (block.mlp.fc1, theirs.linear1),
            (block.mlp.fc2, theirs.linear2),
            (block.norm1, theirs.norm1),
            (block.norm2, theirs.norm2),
        ):
            pairs += [(their.weight, ours.weight), (their.bias, ours.bias)]
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source)
        exact(block(z), theirs.train()(z))  # train(): the plain path, without dropout


def test_attention_pooling_is_torchs_attention_with_a_learned_query():
    model, z = tiny(pool="attention", class_token=False), image(3, 15, 16)
    pool = model.pool_attention
    theirs = nn.MultiheadAttention(16, 2, batch_first=True).double().eval()
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([pool.q.weight, pool.kv.weight]),
            "in_proj_bias": torch.cat([pool.q.bias, pool.kv.bias]),
            "out_proj.weight": pool.proj.weight,
            "out_proj.bias": pool.proj.bias,
        }
    )
    a = theirs(pool.query.expand(3, 1, 16), z, z)[0][:, 0]
    exact(model.pool(z), a + mlp(norm(a, pool.norm), pool.mlp))


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_new_attention_pool_hands_on_as_much_as_it_is_given(activation):
    """Matrices of σ = 0.02 would leave a fiftieth of it to the classifier of a narrow model."""
    torch.manual_seed(0)
    pool = create_model("vit_nano4", pool="attention", class_token=False, activation=activation).pool_attention
    tokens = torch.randn(8, 1, 64).expand(8, 16, 64)  # all alike, so that no mean is taken
    with torch.no_grad():
        assert 0.5 < pool(tokens).std() < 2


def test_mean_pooling_is_over_the_patches_alone():
    model, x = tiny(pool="mean", registers=2), image(2, 3, 12, 20)
    tokens = norm(vit_tokens(model, x, **learned_rows(model)), model.norm)
    exact(model(x), linear(tokens[:, 3:].sum(1) / 15, model.head.output))


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_last_norm_may_act_on_the_pooled_vector(pool):
    model, x = tiny(pool=pool, norm_after_pool=True), image(2, 3, 12, 20)
    assert model.norm is None
    tokens = vit_tokens(model, x, **learned_rows(model))
    pooled = tokens[:, 0] if pool == "token" else tokens[:, 1:].mean(1)
    exact(model(x), linear(norm(pooled, model.norm_pool), model.head.output))


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_the_pretraining_head_has_one_hidden_layer(activation):
    model, x = tiny(head="mlp", head_activation=activation), image(2, 3, 12, 20)
    hidden = linear(model.features(x)["pooled"], model.head.hidden)
    hidden = torch.tanh(hidden) if activation == "tanh" else 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))
    exact(model(x), linear(hidden, model.head.output))


def test_without_classes_the_model_gives_the_pooled_features():
    model, x = tiny(num_classes=0), image(2, 3, 12, 20)
    exact(model(x), norm(vit_tokens(model, x, **learned_rows(model)), model.norm)[:, 0])
    assert tiny(head_bias=False).head.output.bias is None


def test_a_distilled_model_answers_with_the_mean_of_its_heads():
    model, x = tiny(distillation_token=True), image(2, 3, 12, 20)
    classes, distilled = model.forward_heads(x)
    tokens = norm(vit_tokens(model, x, **learned_rows(model)), model.norm)
    exact(distilled, linear(tokens[:, 1], model.head_distillation.output))
    assert (classes - distilled).abs().max() > 0.1
    exact(model(x), (classes + distilled) / 2)


@pytest.mark.parametrize("position", ["learned", "sincos", "relative", "rotary", "conditional"])
@pytest.mark.parametrize("size", [(13, 18), (4, 27), (33, 5)])
def test_a_size_that_is_no_multiple_of_the_patch_is_zero_padded_right_and_bottom(position, size):
    model = tiny(position=position)
    x = image(2, 3, *size)
    padded = torch.zeros(2, 3, -(-size[0] // 4) * 4, -(-size[1] // 4) * 4, dtype=torch.float64)
    padded[:, :, : size[0], : size[1]] = x
    assert torch.equal(model(x), model(padded))
    assert model.token_grid(*size) == (padded.shape[2] // 4, padded.shape[3] // 4)


def test_features_are_the_tokens_of_the_forward_and_lie_on_the_grid():
    model, x = tiny(registers=2, distillation_token=True, depth=3), image(2, 3, 13, 18)
    assert model.prefix_tokens == 4 and model.token_grid(13, 18) == (4, 5)
    out = model.features(x, layers=[0, -1])
    assert set(out) == {"tokens/0", "map/0", "tokens/2", "map/2", "tokens", "pooled"}
    z, grid = model.embed(x)
    assert grid == (4, 5) and z.shape == (2, 24, 16)
    assert torch.equal(out["tokens/0"], model.blocks[0](z))
    for layer in (0, 2):
        assert out[f"map/{layer}"].shape == (2, 16, 4, 5)
        for row, column in ((0, 0), (1, 4), (3, 2)):
            token = out[f"tokens/{layer}"][:, 4 + 5 * row + column]
            assert torch.equal(out[f"map/{layer}"][:, :, row, column], token)
    assert torch.equal(out["tokens"], model.norm(out["tokens/2"]))
    assert torch.equal(model.head(out["pooled"]), model.forward_heads(x)[0])


def test_drop_path_rises_linearly_over_the_blocks():
    model = VisionTransformer(**{**TINY, "depth": 5}, drop_path=0.2)
    assert [b.drop_path.rate for b in model.blocks] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "drop_path"])
def test_randomness_is_for_training_only(rate):
    model = tiny(**{rate: 0.5})
    plain = tiny()
    x = image(4, 3, 12, 20)
    assert torch.equal(model(x), plain(x))
    model.train()
    assert (model(x) - model(x)).abs().max() > 1e-3
    assert torch.equal(plain.train()(x), plain.eval()(x))


@pytest.mark.parametrize("changes", [{}, {"position": "relative"}, {"position": "rotary"}], ids=str)
def test_gradient_checkpointing_changes_neither_loss_nor_gradients(changes):
    model, x = tiny(dropout=0.1, drop_path=0.5, **changes).train(), image(4, 3, 12, 20)

    def step():
        torch.manual_seed(7)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    loss, gradients = step()
    model.gradient_checkpointing = True
    again, recomputed = step()
    assert again == loss and loss > 0
    assert all(torch.equal(a, b) for a, b in zip(gradients, recomputed, strict=True))


def test_gradient_checkpointing_keeps_less_for_the_backward_pass():
    model, x = tiny(depth=6).train(), image(4, 3, 12, 20)
    kept = 0

    def count(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    totals = []
    for checkpointing in (False, True):
        model.gradient_checkpointing, kept = checkpointing, 0
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            model(x)
        totals.append(kept)
    assert totals[1] < totals[0] / 3


def test_a_fresh_model_has_weights_of_deviation_0_02_and_zero_biases():
    model = VisionTransformer(width=192, heads=3, depth=2, distillation_token=True, registers=4, pool="token")
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert p.abs().max() == 0, name
        elif "norm" in name:
            assert torch.equal(p, torch.ones_like(p)), name
        else:
            n = p.numel()  # five standard errors
            assert abs(p.std().item() - 0.02) < 0.02 * 5 / (2 * n) ** 0.5, name
            assert abs(p.mean().item()) < 0.02 * 5 / n**0.5, name


@pytest.mark.parametrize(("position", "size"), [("sincos", 1.0), ("sincos1d", 1.0), ("learned", 0.02 * 48**0.5)])
def test_beside_waves_patches_begin_as_large_as_their_pixels(position, size):
    torch.manual_seed(0)
    shape = {"image_size": (32, 32), "patch_size": (4, 4), "width": 64, "depth": 1, "heads": 2, "position": position}
    decoder = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 1}
    for model in (VisionTransformer(**shape), MaskedAutoencoder(**shape, **decoder).encoder):
        assert model.patch(torch.randn(8, 3, 32, 32)).std().item() == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"position": "rotary"}, {"position": "relative"}], ids=str)
def test_half_precision_agrees_roughly_with_full(changes):
    model, x = tiny(**changes).float(), image(2, 3, 13, 18, dtype=torch.float32)
    full = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(x)
    assert (mixed - full).abs().max() < 0.05 * full.abs().max()
    low = model.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert (low.float() - full).abs().max() < 0.1 * full.abs().max()


def test_an_empty_batch_gives_empty_logits():
    for changes in ({}, {"pool": "attention", "class_token": False}, {"position": "relative"}):
        assert tiny(**changes)(image(0, 3, 12, 20)).shape == (0, 5)


def test_the_defaults_are_vit_b16():
    settings = ViTSettings()
    assert (settings.grid, settings.stride, settings.prefix_tokens, settings.mlp_width) == ((14, 14), (16, 16), 1, 3072)
    hybrid = ViTSettings(stem=(3, 4, 9), patch_size=1, image_size=(225, 31))
    assert hybrid.stride == (16, 16) and hybrid.grid == (15, 2)
