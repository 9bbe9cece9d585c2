"""Small models of a user's own, as they would stand in a file of theirs."""

from textwrap import dedent

POINTWISE = dedent(
    '''
    """A network that sees each point by itself."""

    import torch
    from torch import nn

    from linearno import model


    @model("pointwise-net")
    class PointwiseNet(nn.Module):
        """Two layers at each point.

        Args:
            width: of the hidden layer.
            dropout: fraction of hidden features that are dropped in training.
        """

        def __init__(self, *, coords: int, inputs: int, outputs: int, width: int = 16, dropout: float = 0.1):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(coords + inputs, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, outputs)
            )

        def forward(self, coords, inputs=None):
            return self.net(coords if inputs is None else torch.cat([coords, inputs], dim=-1))
    '''
)
