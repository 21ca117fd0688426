"""The conformance suite's own parts: installing clients, running brokers, counting results."""
