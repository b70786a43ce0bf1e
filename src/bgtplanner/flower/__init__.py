"""The same federation on real machines, over Flower (extra ``flower``)."""
