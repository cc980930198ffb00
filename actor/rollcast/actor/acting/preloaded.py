"""Imports a local actor's modules into the process that forks the actors. No such module loads torch.

The forked processes share the memory of these modules, because their garbage collections do not visit, and so do not
copy, the modules.
"""

from rollcast.services.process.imports import keep_imports, uncollected_imports

keep_imports()
with uncollected_imports():
    import gymnasium.envs.classic_control  # noqa: F401 - so that forked processes have it

    import rollcast.actor.acting.local_process
    import rollcast.actor.policies.numpy_acting
    import rollcast.actor.vector.child  # noqa: F401 - likewise
