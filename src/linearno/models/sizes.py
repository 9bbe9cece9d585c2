"""What the cost of a model depends on, read off the model."""

from linearno.metrics.cost import Shape
from linearno.nn import PointTransformer


def shape_of(model: PointTransformer, points: int) -> Shape:
    cfg = model.config
    return Shape(
        points=points,
        features=model.features,
        outputs=model.head.out_features,
        width=cfg.width,
        heads=cfg.heads,
        depth=cfg.depth,
        slices=cfg.slices,
        mlp_ratio=cfg.mlp_ratio,
        taps=3 ** len(cfg.require_grid()) if cfg.stem == "conv" else 1,
        merge_layers=getattr(cfg, "merge_layers", 1),
        time=cfg.time,
    )
