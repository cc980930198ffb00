"""Injects faults into actors, learners, files, disks, clocks, networks and containers, and checks that nothing is lost.

`make chaos` runs it; docs/development/chaos.md explains the report. The modules:

    bookkeeping, acting, learning     an environment, an actor and a learner that write down all they do
    playing                           a client with environments that dial in, which writes down what it gets
    ledger, lineage, games, ranks     the checks: of accepted rollouts, of the training of learners that die, of
                                      environments that dial in, and of several learners of one run
    faults, proxy                     faults of actors and their connections
    learner_faults                    faults of learners; run_files, disk and clock: of what they depend on
    containers                        faults of both, on the real engine
    processes, learner_process        the victims, which are started again
    learners                          the targets of rollouts in this process
    assault, run, learner_run, ranks_run, container_run, report    the suites and their results
"""
