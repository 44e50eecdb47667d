"""The kernel for few tokens: on a GPU as compiled, elsewhere by Triton's interpreter, against plain products."""

import subprocess
import sys

import pytest
import torch

from tests.models.kernels import errors_of

pytest.importorskip("triton", reason="Triton comes with PyTorch for NVIDIA GPUs, and is not installed here")

GPU = torch.cuda.is_available()
SHAPES = [(2, 3, 64, 16), (1, 2, 65, 16), (2, 2, 17, 24), (1, 2, 64, 32), (1, 1, 50, 64)]  # B H N d

PROGRAM = """
import json, sys, torch
from vitrail.models.kernels.short_attention import short_attention

device, errors = sys.argv[1], []
for b, h, n, d in json.loads(sys.argv[2]):
    torch.manual_seed(n)
    qkv = torch.randn(b, n, 3, h, d, dtype=torch.float16, device=device).requires_grad_()
    out = short_attention(qkv, d**-0.5)
    above = torch.randn(b, h, n, d, dtype=out.dtype, device=device).transpose(1, 2)  # not as `out` lies
    out.backward(above)
    true = qkv.detach().double().requires_grad_()
    q, k, v = true.permute(2, 0, 3, 1, 4)
    wanted = (((q @ k.mT) * d**-0.5).softmax(-1) @ v).transpose(1, 2)
    wanted.backward(above.double())
    pairs = [(out, wanted), *zip(qkv.grad.unbind(2), true.grad.unbind(2))]
    errors.append([(a.double() - c).abs().max().item() / c.abs().max().item() for a, c in pairs])
print(json.dumps(errors))
"""


def test_attention_over_few_tokens_and_its_gradients_are_those_of_plain_products():
    for shape, errors in zip(SHAPES, errors_of(PROGRAM, SHAPES), strict=True):
        assert max(errors) < 2e-3, (shape, errors)  # half precision has 2⁻¹¹ = 5e-4


def test_the_compiler_takes_its_presence_for_a_constant():
    """The mark is set by hand, for the decorator imports the compiler; this is the decorator's own."""
    from vitrail.models.kernels.short_attention import can_build

    def marked() -> bool:
        return True

    assert vars(torch.compiler.assume_constant_result(marked)) == vars(can_build)


def test_models_come_without_the_compiler():
    code = "import sys, vitrail.models, vitrail.predict; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("name", ["short_attention", "mix_neighbours"])
def test_compiled_models_use_the_kernels(name):
    """They once did not: while it compiles, PyTorch 2.11 says that it exports, and what is exported must do without."""
    from vitrail.models import create_model

    called = []

    def backend(graph, _):
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    model = torch.compile(create_model("hybrid_mini4", num_classes=10).cuda(), backend=backend)
    with torch.autocast("cuda", torch.bfloat16):
        model(torch.randn(8, 3, 32, 32, device="cuda"))
    assert any(name in target for target in called)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_model_gives_the_same_with_either_kernel(monkeypatch):
    from vitrail.models import attention, create_model

    torch.manual_seed(0)
    model = create_model("vit_mini4", num_classes=10).cuda().eval()
    x = torch.randn(8, 3, 32, 32, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        short = model(x)
        monkeypatch.setattr(attention, "suits", lambda qkv: False)
        assert (model(x) - short).abs().max() < 0.02 * short.abs().max()
