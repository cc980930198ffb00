"""Makes batches for the trainer, from fresh rollouts or from replay buffers, and counts progress."""
