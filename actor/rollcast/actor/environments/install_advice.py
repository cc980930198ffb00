"""Finds the package of a missing environment, and the command that installs the package."""

import importlib.util
import re
from pathlib import Path
from typing import Final

from gymnasium import registry
from gymnasium.error import DependencyNotInstalled

from rollcast.actor.entry_points import missing_module_advice
from rollcast.services.process.installation import extra_with, install_extra, typed
from rollcast.services.settings.suggestions import did_you_mean

# Modules and packages whose import registers environments with gymnasium, by the beginning of their ids.
_REGISTERED_BY: Final = {
    "ALE/": ("ale_py", "ale-py"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}
_PACKAGES: Final = dict(_REGISTERED_BY.values())


def for_unknown_id(env_id: str) -> str:
    """Returns advice for an id that gymnasium does not know."""
    name = env_id.rpartition(":")[2]
    for beginning, (module, package) in _REGISTERED_BY.items():
        if name.startswith(beginning) and not env_id.startswith(f"{module}:"):
            if importlib.util.find_spec(module) is not None:
                return f"write '{module}:{name}', so that the package that registers it is imported"
            return f"{package} registers this id: {typed('pip')} install {package}, and write '{module}:{name}'"
    if Path(f"{env_id}.py").is_file():
        return f"{env_id}.py is in this folder: write '{env_id}:NAME', with the name of a class or a function in it"
    guess = did_you_mean(name, registry)
    if guess:
        return guess
    return "if a package registers this id, install it and write 'module:id'; gymnasium.pprint_registry() lists all ids"


def for_missing_module(error: BaseException) -> str:
    """Returns advice for a module that cannot be imported."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return "correct the name before the colon"
    module = error.name.partition(".")[0]
    if importlib.util.find_spec(module) is not None:
        return f"correct the name: {module} is installed and has no {error.name}"
    if (extra := extra_with(module)) is not None:
        return f"install it: {install_extra(extra)}"
    if module in _PACKAGES:
        return f"install its package: {typed('pip')} install {_PACKAGES[module]}"
    return missing_module_advice(module)


def for_failure(error: BaseException) -> str:
    """Returns advice for an exception that was raised while an environment was made."""
    # gymnasium's error for a missing module has the import error as its cause
    lacking = error.__cause__ if isinstance(error, DependencyNotInstalled) else error
    if isinstance(lacking, ModuleNotFoundError) and extra_with(str(lacking.name)) is not None:
        return for_missing_module(lacking)
    # otherwise the text of gymnasium's error has the commands, in backticks
    missing = re.findall(r"`pip install ([^`]+)`", str(error)) if isinstance(error, DependencyNotInstalled) else []
    if missing:
        pip = typed("pip")
        return f"install what it needs: {' && '.join(f'{pip} install {what}' for what in missing)}"
    if isinstance(error, ModuleNotFoundError):
        return for_missing_module(error)
    return "correct env_kwargs, or install what it needs"
