"""Loops, worker processes and logs that the controller and the webhook share."""
