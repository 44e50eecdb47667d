"""What users of timm ask of every model: features and head apart, another number of classes, checkpointing, what not to
decay. A family of models says how its features come about, and has the rest from here."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vitrail.models.heads import Head
from vitrail.models.layers import init_weights

# Parts of the names of what is no matrix, though it may have two dimensions: tables, tokens, temperatures.
NEVER_DECAYED = ("position", "token", "registers", "bias.table", "query", "logit_scale", "prompts")


def decays(name: str, parameter: Tensor) -> bool:
    """Does weight decay act on the parameter of this name? On matrices and filters; not on vectors, tokens, tables."""
    plain = not any(part in name for part in NEVER_DECAYED) and not name.endswith(".level")
    return parameter.ndim > 1 and plain


class Backbone(nn.Module):
    """What can be trained block by block."""

    gradient_checkpointing: bool

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """In training, keeps only what enters each block, and computes the rest again in the backward pass: the same
        gradients from less memory, in about a third more time."""
        self.gradient_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """The names of the parameters that are not to be decayed, with all biases and gains among them."""
        return {name for name, parameter in self.named_parameters() if not decays(name, parameter)}


class Classifier(Backbone):
    """Images to features, and features to logits: `forward` is the one after the other."""

    settings: Any
    head: Head

    def forward_features(self, x: Tensor) -> Tensor:
        """What the head is given: tokens [B, N, D] of a ViT, a map [B, h, w, D] of a Swin, a vector [B, D] of a
        convolutional network; after the last norm."""
        raise NotImplementedError

    def pool(self, features: Tensor) -> Tensor:
        """One vector per image, [B, D]."""
        raise NotImplementedError

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits [B, classes]; with `pre_logits`, or without classes, the vectors that they are computed from."""
        vectors = self.head.pre_logits(self.pool(features))
        return vectors if pre_logits else self.head.logits(vectors)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    @property
    def num_classes(self) -> int:
        return self.settings.num_classes

    @property
    def num_features(self) -> int:
        """The width of `forward_features`, and of what a classifier on top is given."""
        return self.head.width

    def heads(self) -> list[Head]:
        """One or, with a distillation token, two."""
        both = (self.head, getattr(self, "head_distillation", None))
        return [head for head in both if head is not None]

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """The linear layer that gives the logits, the identity where there are no classes; two of them with a
        distillation token."""
        layers = [nn.Identity() if head.output is None else head.output for head in self.heads()]
        return layers[0] if len(layers) == 1 else tuple(layers)

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh classifier for so many classes, in place; 0 takes it away, and the model gives features."""
        self.settings = replace(self.settings, num_classes=num_classes)
        like = next(self.parameters())
        for head in self.heads():
            head.reset(num_classes, like)
            if head.output is not None:
                self.init_output(head.output)

    def init_output(self, layer: nn.Linear) -> None:
        init_weights(layer)
