"""What `ci/cluster/run` is made of: the brokers, their volume, the load, the faults, the checker."""
