"""Imports the modules of a local actor, for the process that actors are forked from. None of it loads torch.

The forked processes share its memory: no collection of theirs visits, and so copies, what is imported here.
"""

from rollcast.services.process.imports import keep_imports, uncollected_imports

keep_imports()
with uncollected_imports():
    import gymnasium.envs.classic_control  # noqa: F401 - so that forked processes have it

    import rollcast.actor.acting.local_process
    import rollcast.actor.policies.numpy_acting
    import rollcast.actor.vector.child  # noqa: F401 - likewise
