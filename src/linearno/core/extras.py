"""Packages that not everyone needs."""

from importlib.util import find_spec

from linearno.core.errors import UserError


def require_extra(package: str, extra: str) -> None:
    """An error that says how to install a package, if it is not here."""
    if find_spec(package) is None:
        raise UserError(f"{package} is not installed; run: pip install 'linearno[{extra}]'")
