"""kvgate's metrics: each as data, the collector that fills them, and the endpoint that serves them."""
