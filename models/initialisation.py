"""Initial values of a model's parameters."""

import torch
from torch import nn
from txport.models.config import Config
from txport.models.embeddings import Embedding


def initialise(model: nn.Module, config: Config) -> None:
    """Initialise matrices by Xavier (Glorot and Bengio, 2010), embeddings and positions as N(0, 1/d_model).

    The initialisation "annotated" uses Xavier for embeddings also; "d2l" uses PyTorch's default for them, N(0, 1). Both
    use PyTorch's default for biases, uniform within +-1/sqrt(inputs).
    """
    kind = config.initialisation
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                if kind == "scaled":
                    nn.init.zeros_(module.bias)
                else:
                    reach = module.in_features**-0.5
                    nn.init.uniform_(module.bias, -reach, reach)
        for module in model.modules():
            if kind != "annotated" and isinstance(module, Embedding):
                nn.init.normal_(module.tokens.weight, std=config.d_model**-0.5 if kind == "scaled" else 1.0)
        for name, parameter in model.named_parameters():
            if "positions" in name:
                nn.init.normal_(parameter, std=config.d_model**-0.5)
