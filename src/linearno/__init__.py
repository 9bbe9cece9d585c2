"""Neural operators by linear attention: gather N points into M slices, mix, scatter back."""
