"""Injects faults into actors, learners, files, disks, clocks, networks and containers, and checks that nothing is lost.

`make chaos` runs it; docs/development/chaos.md explains the report. The modules:

    bookkeeping, acting, learning     an environment, an actor and a learner that write down all they do
    ledger, lineage                   the checks: of accepted rollouts, and of the training of learners that die
    faults, proxy                     faults of actors and their connections
    learner_faults                    faults of learners; run_files, disk and clock: of what they depend on
    containers                        faults of both, on the real engine
    processes, learner_process        the victims, which are started again
    learners                          the targets of rollouts in this process
    assault, run, learner_run, container_run, report    the suites and their results
"""
