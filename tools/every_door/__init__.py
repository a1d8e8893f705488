"""One deployment asked at every door of kvgate, by the real processes: docs/one-deployment-every-door.md."""
