"""Public names of a package, loaded when they are first used (PEP 562).

The stub beside the package's ``__init__.py`` is the one list of them: type checkers read it, and
:func:`read_names` reads it at run time. By itself, since three packages begin with it, and load
nothing else.

``lazy_loader`` (0.6, measured) refuses a stub whose imports are absolute, knows no renamed names,
and takes 5.5 ms where this takes 1.7.
"""

from __future__ import annotations

RENAMED = {
    "meup_agent.Expired": "meup_agent.Expiry",
    "meup_agent.Fulfilled": "meup_agent.Fulfillment",
    "meup_agent.Link": "meup_agent.types.CauseStep",
    "meup_agent.OwnProposal": "meup_agent.ProposalHandle",
    "meup_agent.Rejected": "meup_agent.Rejection",
    "meup_agent.Withdrawn": "meup_agent.Withdrawal",
    "meup_agent.errors.ShutDown": "meup_agent.errors.RemoteShutdown",
    "meup_agent.gateway.Limits": "meup_agent.gateway.GatewayLimits",
}
"""Names from before the first release → names of today."""

TYPE_CHECKING = False  # importing typing for that takes longer than all the rest
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec, SourceFileLoader


def read_names(package: ModuleSpec) -> dict[str, str]:
    """Public name → its module, from the stub of a package: one import in each line of it."""
    # By the loader, not the file system: a package can be in an archive.
    loader: SourceFileLoader = package.loader  # type: ignore[assignment]
    stub = loader.get_data(f"{package.origin}i").decode()
    names: dict[str, str] = {}
    for line in stub.splitlines():
        _, module, _, name, *_ = line.split()
        names[name] = module
    return names


def check_renamed(package: str, name: str) -> None:
    """Raise an error that says what a name is called now, if it was another once.

    Raises:
        ImportError: It was renamed; of an AttributeError ``from … import`` would hide the words.
    """
    old = f"{package}.{name}"
    if old in RENAMED:
        raise ImportError(f"{old} is called {RENAMED[old]} now")


def load_name(package: str, names: dict[str, str], name: str) -> object:
    """A public name of a package, once its module is loaded.

    Raises:
        ImportError: It was renamed.
        AttributeError: The package has no public name like this.
    """
    import importlib

    if name not in names:
        check_renamed(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(names[name]), name)
