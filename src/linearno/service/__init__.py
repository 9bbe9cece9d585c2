"""HTTP service: predictions of a run for arrays and meshes sent by clients."""

from linearno.service.app import create_app
from linearno.service.config import ServiceConfig
from linearno.service.server import serve

__all__ = ["ServiceConfig", "create_app", "serve"]
