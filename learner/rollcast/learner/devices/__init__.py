"""The learner's device: copies between the device and main memory, precision, and CUDA graphs."""
