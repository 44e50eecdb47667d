"""From tokens to one vector, and from that vector to classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.attention import attend
from vitrail.models.layers import MLP


class AttentionPool(nn.Module):
    """A learned query asks all tokens (multi-head attention pooling, MAP): z = a + MLP(LN(a)), a = attention(query)."""

    def __init__(self, width: int, heads: int, mlp_width: int, activation: str, norm_eps: float):
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = MLP(width, mlp_width, activation)

    def reset_parameters(self) -> None:
        """Xavier's, as in SigLIP. Nothing goes past this attention: where matrices of σ = 0.02 shrink a block's update,
        which is added to what is there, here they would shrink all that the classifier is given."""
        nn.init.trunc_normal_(self.query, std=self.query.shape[-1] ** -0.5)
        for layer in (self.q, self.kv, self.proj, self.mlp.fc1, self.mlp.fc2):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, tokens: Tensor) -> Tensor:  # B N D -> B D
        b, _, d = tokens.shape
        q = self.q(self.query).expand(b, 1, d).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = attend(q, k, v, bias=None, scale=q.shape[-1] ** -0.5, dropout=0.0)
        x = self.proj(x.transpose(1, 2).reshape(b, d))
        return x + self.mlp(self.norm(x))


class Head(nn.Module):
    """Classes from the pooled vector: a linear layer or, for pre-training, one hidden layer in front of it."""

    def __init__(self, width: int, num_classes: int, hidden: str | None = None, bias: bool = True):
        super().__init__()
        self.width, self.activation, self.bias = width, hidden, bias
        self.hidden = nn.Linear(width, width) if hidden else None
        self.output = nn.Linear(width, num_classes, bias=bias) if num_classes else None

    def forward(self, x: Tensor) -> Tensor:  # B D -> B classes, or B D without classes
        return self.logits(self.pre_logits(x))

    def pre_logits(self, x: Tensor) -> Tensor:  # B D -> B D
        if self.hidden is None:
            return x
        x = self.hidden(x)
        return torch.tanh(x) if self.activation == "tanh" else F.gelu(x)

    def logits(self, x: Tensor) -> Tensor:  # B D -> B classes
        return x if self.output is None else self.output(x)

    def reset(self, num_classes: int, like: Tensor) -> None:
        """Another output layer, of as many classes, where `like` lies and of its type."""
        self.output = nn.Linear(self.width, num_classes, self.bias).to(like) if num_classes else None


def classifiers(model: nn.Module) -> list[nn.Linear]:
    """The layers that give the logits: one or, with a distillation token, two."""
    return [head.output for head in model.modules() if isinstance(head, Head) and head.output is not None]
