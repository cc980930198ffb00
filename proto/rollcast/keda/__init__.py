"""The stubs of KEDA's contract for external scalers, which `make proto` writes from the .proto file beside them."""
