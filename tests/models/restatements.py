"""The equations of the papers, written as plainly as they read, for models in float64. Nothing here is fused or fast.

A restatement reads the weights of the model under test and shares no other line with it.
"""

import math

import torch

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu": lambda x: torch.where(x > 0, x, 0.0),
}


def randomised(model, seed=0):
    """The model in eval mode and float64, every parameter drawn anew: no zero bias or unit gain can hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = "norm" in name and name.endswith("weight")
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3 + (1.0 if gain else 0.0))
    return model.double().eval()


def image(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear(x, m):
    return x @ m.weight.T + (0 if m.bias is None else m.bias)


def norm(x, m):
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred**2).sum(-1, keepdim=True) / x.shape[-1]
    return centred / torch.sqrt(variance + m.eps) * m.weight + m.bias


def softmax(scores):
    e = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def attention(x, m, bias=None, turn=None):
    """[B, N, D] -> [B, N, D] and the maps [B, H, N, N], head by head. `bias` is [H, N, N], `turn` acts on q and k."""
    width, d = x.shape[-1], x.shape[-1] // m.heads
    zeros = torch.zeros(width, dtype=x.dtype)
    offsets = [zeros, zeros, zeros] if m.qkv.bias is None else m.qkv.bias.split(width)
    if m.q_bias is not None:
        offsets = [m.q_bias, zeros, m.v_bias]
    values, maps = [], []
    for head in range(m.heads):
        rows = slice(head * d, (head + 1) * d)
        q, k, v = (x @ w[rows].T + b[rows] for w, b in zip(m.qkv.weight.split(width), offsets, strict=True))
        if m.q_norm is not None:
            q, k = norm(q, m.q_norm), norm(k, m.k_norm)
        if turn is not None:
            q, k = turn(q), turn(k)
        if m.cosine:
            q, k = (t / torch.sqrt((t**2).sum(-1, keepdim=True)).clamp(min=1e-12) for t in (q, k))  # padding has k = 0
            scores = q @ k.transpose(-2, -1) * min(math.exp(m.logit_scale[head].item()), 100.0)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        maps.append(softmax(scores if bias is None else scores + bias[head]))
        values.append(v)
    joined = torch.stack(maps, 1)
    outputs = [joined[:, head] @ v for head, v in enumerate(values)]
    return linear(torch.cat(outputs, -1), m.proj), joined


def mlp(x, m):
    hidden = linear(x, m.fc1)
    if m.activation == "swiglu":
        gate, value = hidden.split(hidden.shape[-1] // 2, dim=-1)
        return linear(gate / (1 + torch.exp(-gate)) * value, m.fc2)
    return linear(ACTIVATIONS[m.activation](hidden), m.fc2)


def block(x, m, bias=None, turn=None):
    """Eqs. 2 and 3 of the ViT paper."""
    gamma1, gamma2 = (getattr(scale, "gamma", 1.0) for scale in (m.scale1, m.scale2))
    if m.norm_first:
        x = x + gamma1 * attention(norm(x, m.norm1), m.attention, bias, turn)[0]
        return x + gamma2 * mlp(norm(x, m.norm2), m.mlp)
    x = norm(x + gamma1 * attention(x, m.attention, bias, turn)[0], m.norm1)
    return norm(x + gamma2 * mlp(x, m.mlp), m.norm2)


def patches(x, m):
    """x_p E + b for every patch in raster order: [B, C, H, W] -> [B, hw, D]. The patch must divide the image."""
    p, q = m.patch_size
    tokens = []
    for top in range(0, x.shape[2], p):
        for left in range(0, x.shape[3], q):
            pixels = x[:, :, top : top + p, left : left + q].flatten(1)
            tokens.append(pixels @ m.weight.flatten(1).T + (0 if m.bias is None else m.bias))
    return torch.stack(tokens, 1)


def vit_tokens(model, x, add=0.0, prefix_rows=None, bias=None, turn=None, between=None):
    """Eqs. 1 to 3: the tokens that leave the last block, [B, N, D], before the last norm.

    `add` [hw, D] is added to the patches, `prefix_rows` [k, D] to class and distillation token; `between` acts on all
    tokens after the first block.
    """
    z = patches(x, model.patch) + add
    front = [t for t in (model.class_token, model.distillation_token) if t is not None]
    if prefix_rows is not None:
        front = [t + row for t, row in zip(front, prefix_rows, strict=True)]
    if model.registers is not None:
        front.append(model.registers)
    z = torch.cat([*(t.expand(len(x), -1, -1) for t in front), z], dim=1)
    if model.norm_before is not None:
        z = norm(z, model.norm_before)
    for i, m in enumerate(model.blocks):
        z = block(z, m, bias, turn)
        if i == 0 and between is not None:
            z = between(z)
    return z


def class_logits(model, tokens):
    """Eq. 4 and a linear head."""
    return linear(norm(tokens[:, 0], model.norm), model.head.output)
