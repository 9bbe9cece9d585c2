"""Direct solvers for batches of matrices on structured grids."""
