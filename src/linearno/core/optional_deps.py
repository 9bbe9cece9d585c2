"""Optional dependencies, installed by extras."""

from importlib.util import find_spec

from linearno.core.errors import UserError


def require_extra(package: str, extra: str) -> None:
    """Raise an error with the install command if `package` is not installed."""
    if find_spec(package) is None:
        raise UserError(f"{package} is not installed; run: pip install 'linearno[{extra}]'")
