"""The studio: a page that shows what runs predict, for designs that change under the pointer."""

from linearno.studio.server import launch

__all__ = ["launch"]
