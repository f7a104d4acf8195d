"""Many replicas in virtual time: the real scheduler, router and autoscaler."""
