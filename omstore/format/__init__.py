"""What the store's files look like: arrays (hot and cold), zarr metadata, packed states, the manifest."""
