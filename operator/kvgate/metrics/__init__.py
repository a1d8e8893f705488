"""What kvgate tells Prometheus: every metric as data, the collector that fills them, the endpoint that serves them."""
