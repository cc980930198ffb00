"""Faults on purpose, upon actors, learners, files, disks, clocks, networks and containers; and the books kept.

`make chaos` runs it; docs/chaos.md says how to read the report. What there is, by room:

    bookkeeping, acting, learning     an environment, an actor and a learner that can be held to account
    ledger, lineage                   the oracles: of what was accepted, and of what learners that die have learnt from
    faults, proxy                     actors and their connections
    learner_faults                    learners; run_files, disk and clock have what they depend on
    containers                        both, on the real engine
    processes, learner_process        who is hit, and started again
    learners                          what rollouts arrive at in this process
    assault, run, learner_run, container_run, report    suites, and what came of them
"""
