"""Packages that are not needed by all: an extra brings them."""

from importlib.util import find_spec

from linearno.core.errors import UserError


def require_extra(package: str, extra: str) -> None:
    """An error that names the install command if `package` is not installed."""
    if find_spec(package) is None:
        raise UserError(f"{package} is not installed; run: pip install 'linearno[{extra}]'")
